package wire

import "encoding/json"

// NamespaceLogin and its kin are SSHSIG namespaces: a signature made for one
// purpose is worth nothing for another (R37).
const (
	NamespaceLogin    = "fleet-login@v1"
	NamespaceOrder    = "fleet-order@v1"
	NamespaceArtifact = "fleet-artifact@v1"
	NamespaceMaterial = "fleet-material@v1"
)

// LoginMessage is what a login signs: the plane's nonce and the URL that the
// person dialled. A plane that passes the nonce of another on gets a signature
// that names its own URL, which the other refuses.
func LoginMessage(nonce, url string) []byte {
	return []byte("fleet login\nnonce " + nonce + "\nurl " + url + "\n")
}

// ChallengeAnswer is the answer to POST /v1/login/challenge (empty body).
type ChallengeAnswer struct {
	Nonce     string `json:"nonce"`
	ExpiresAt Time   `json:"expires_at"`
}

// LoginRequest is the body of POST /v1/login.
type LoginRequest struct {
	Nonce     string `json:"nonce"`
	URL       string `json:"url"`                  // as dialled: scheme, host, port, no path
	PublicKey string `json:"public_key"`           // authorized_keys form
	Signature string `json:"signature"`            // armored SSHSIG over LoginMessage, NamespaceLogin
	Invite    string `json:"invitation,omitempty"` // adds the key to the person the invitation is for
}

// LoginAnswer carries a person's session token. It is not stored by the plane,
// only its digest is.
type LoginAnswer struct {
	Token     string `json:"token"`
	Person    string `json:"person"`
	Role      string `json:"role"` // owner | member
	ExpiresAt Time   `json:"expires_at"`
}

// Whoami is fleet.whoami/v1.
type Whoami struct {
	Schema    string   `json:"schema"`
	Plane     string   `json:"plane"`
	Kind      string   `json:"kind"` // person | token
	Name      string   `json:"name"`
	Role      string   `json:"role,omitempty"`
	Scopes    []string `json:"scopes,omitempty"`
	Key       string   `json:"key,omitempty"` // fingerprint of the key that logged in
	ExpiresAt *Time    `json:"expires_at"`
}

// Scopes of automation tokens.
const (
	ScopeRead   = "read"
	ScopeRotate = "rotate"
	ScopeOrder  = "order"
	ScopeLogs   = "logs"
)

// TokenRequest is the body of POST /v1/tokens.
type TokenRequest struct {
	Name     string   `json:"name"`
	Scopes   []string `json:"scopes"`
	ExpiresS float64  `json:"expires_s"` // seconds from now; required
}

// Token is fleet.token/v1, without the secret.
type Token struct {
	Schema    string   `json:"schema,omitempty"`
	Name      string   `json:"name"`
	Owner     string   `json:"owner"`
	Scopes    []string `json:"scopes"`
	CreatedAt Time     `json:"created_at"`
	ExpiresAt Time     `json:"expires_at"`
	LastUsed  *Time    `json:"last_used"`
}

// TokenCreated is the answer to POST /v1/tokens: the only time the secret is shown.
type TokenCreated struct {
	Token
	Secret string `json:"secret"`
}

// Tokens is fleet.tokens/v1.
type Tokens struct {
	Schema string  `json:"schema"`
	Tokens []Token `json:"tokens"`
}

// AuditEntry is one link of the audit chain.
//
// Hash is the SHA-256, in hex, of Prev's 32 bytes followed by Canonical().
// The first entry's Prev is 64 zeros.
type AuditEntry struct {
	Seq     uint64            `json:"seq"`
	At      Time              `json:"at"`
	Actor   string            `json:"actor"`   // person:dana, token:ci, machine:m_…, local:init
	Action  string            `json:"action"`  // machine.admit, machine.delete, …
	Subject string            `json:"subject"` // what it was done to
	Detail  map[string]string `json:"detail,omitempty"`
	Prev    string            `json:"prev"`
	Hash    string            `json:"hash"`
}

// Canonical is the bytes that an entry's hash covers besides Prev: the JSON of
// the entry with prev and hash empty. encoding/json sorts the keys of Detail.
func (e AuditEntry) Canonical() []byte {
	e.Prev, e.Hash = "", ""
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

// Audit is fleet.audit/v1, entries in order of Seq. Head is the chain's last
// entry whatever the filter was.
type Audit struct {
	Schema  string       `json:"schema"`
	Head    AuditHead    `json:"head"`
	Entries []AuditEntry `json:"entries"`
}

// AuditHead names the last entry of the chain.
type AuditHead struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// Plane is fleet.plane/v1, printed by planed init.
type Plane struct {
	Schema     string `json:"schema"`
	URL        string `json:"url"`
	CAPin      string `json:"ca_pin"` // sha256:HEX of the root's SubjectPublicKeyInfo
	InviteFile string `json:"invite_file"`
}

// Credential is fleet.credential/v1: what agentd credential install reads on
// its standard input. It is the one document that carries a secret, and the
// only way for it is SSH's standard input (R1).
type Credential struct {
	Schema     string          `json:"schema"`
	Machine    string          `json:"machine"`
	Generation int64           `json:"generation"`
	Secret     string          `json:"secret"`
	Plane      CredentialPlane `json:"plane"`
	Gate       *CredentialGate `json:"gate"`
}

// CredentialPlane says where the plane is and what vouches for it: PEM roots,
// or the system's when RootsPEM is "system".
type CredentialPlane struct {
	URL      string `json:"url"`
	RootsPEM string `json:"roots_pem"`
	// Versions of the two, as statements that a person signed count them; 0 where
	// no statement was taken yet.
	URLVersion   int64 `json:"url_version,omitempty"`
	TrustVersion int64 `json:"trust_version,omitempty"`
}

// CredentialGate is the gate token at one version.
type CredentialGate struct {
	Version int64  `json:"version"`
	Value   string `json:"value"`
}
