package wire

// NamespaceAdmit is the SSHSIG namespace of a touch: the signature by which a
// person's security key admits or approves one machine.
const NamespaceAdmit = "fleet-admit@v1"

// CodeTouchRequired refuses an admission or approval without a touch, where the
// plane demands one.
const CodeTouchRequired = "touch_required" // 403

// AdmitMessage is what a touch signs: the plane's nonce, its URL, and what is
// admitted: AdmitSubject, or ApproveSubject.
func AdmitMessage(nonce, url, subject string) []byte {
	return []byte("fleet admit\nnonce " + nonce + "\nurl " + url + "\n" + subject + "\n")
}

// AdmitSubject names what POST /v1/machines admits, by its two digests in hex.
func AdmitSubject(installation, credential string) string {
	return "installation " + installation + "\ncredential " + credential
}

// Touch is a security key's signature with the user-presence bit.
type Touch struct {
	Nonce     string `json:"nonce"`      // of POST /v1/login/challenge
	PublicKey string `json:"public_key"` // authorized_keys form, of type sk-…
	Signature string `json:"signature"`  // armored SSHSIG over AdmitMessage, NamespaceAdmit
}

// Schemas of persons' documents.
const (
	SchemaPerson        = "fleet.person/v1"
	SchemaPersons       = "fleet.persons/v1"
	SchemaPersonChanged = "fleet.person-changed/v1"
)

// Person is fleet.person/v1.
type Person struct {
	Schema    string      `json:"schema,omitempty"`
	Name      string      `json:"name"`
	Role      string      `json:"role"`
	Locked    bool        `json:"locked"`
	LockedAt  *Time       `json:"locked_at"`
	LockedBy  string      `json:"locked_by,omitempty"`
	CreatedAt Time        `json:"created_at"`
	LastLogin *Time       `json:"last_login"`
	Keys      []PersonKey `json:"keys"`
	Sessions  int         `json:"sessions"` // that are open
	Tokens    []string    `json:"tokens"`   // names
	Machines  *int        `json:"machines"` // how many are theirs; null in lists
}

// PersonKey is one SSH key of a person.
type PersonKey struct {
	Fingerprint string `json:"fingerprint"`
	Type        string `json:"type"`
	AddedAt     Time   `json:"added_at"`
	LastUsed    *Time  `json:"last_used"`
}

// Invitation is one that waits, without its secret.
type Invitation struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	By        string `json:"by"`
	ExpiresAt Time   `json:"expires_at"`
}

// Persons is fleet.persons/v1.
type Persons struct {
	Schema      string       `json:"schema"`
	Persons     []Person     `json:"persons"`
	Invitations []Invitation `json:"invitations"`
}

// PersonChanged is fleet.person-changed/v1: what a change to a person ended
// besides.
type PersonChanged struct {
	Schema      string   `json:"schema"`
	Name        string   `json:"name"`
	Change      string   `json:"change"`      // locked | unlocked | removed | key_added | key_removed
	Sessions    int      `json:"sessions"`    // that ended
	Tokens      []string `json:"tokens"`      // that ended
	Invitations int      `json:"invitations"` // that are void
	Machines    int      `json:"machines"`    // that are still theirs
}

// Words of PersonChanged.Change.
const (
	PersonLocked     = "locked"
	PersonUnlocked   = "unlocked"
	PersonRemoved    = "removed"
	PersonKeyAdded   = "key_added"
	PersonKeyRemoved = "key_removed"
)

// KeyRequest is the body of POST /v1/persons/{name}/keys.
type KeyRequest struct {
	PublicKey string `json:"public_key"` // authorized_keys form
}

// TransferRequest is the body of POST /v1/machines/{id}/transfer.
type TransferRequest struct {
	To string `json:"to"` // a person's name
}
