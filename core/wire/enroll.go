package wire

import "strings"

// Paths of the enrolment by short code. The page that PathApprove names is for
// a person's browser; the others are for programs.
const (
	PathEnroll     = "/v1/enroll"
	PathEnrollPoll = "/v1/enroll/poll"

	PathEnrollments       = "/v1/enrollments"
	PathEnrollmentLook    = PathEnrollments + "/look"
	PathEnrollmentApprove = PathEnrollments + "/approve"
	PathEnrollmentDeny    = PathEnrollments + "/deny"

	PathApprovePage = "/approve"
	PathSignInPage  = "/web/sign-in"
	PathWebLinks    = "/v1/web/links"
)

// CodeAlphabet is what short codes are made of: Crockford's base 32, in which
// no two characters are taken for each other.
const CodeAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// CodeLength is how many characters a short code has: 40 bits.
const CodeLength = 8

// NormalCode reads a short code as a person types one: in any case, with
// dashes or blanks anywhere, O for 0, I and L for 1.
func NormalCode(s string) (code string, ok bool) {
	if len(s) > 64 {
		return "", false
	}
	b := make([]byte, 0, CodeLength)
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		switch c {
		case '-', ' ', '\t', '\r', '\n':
			continue
		case 'O':
			c = '0'
		case 'I', 'L':
			c = '1'
		}
		if strings.IndexByte(CodeAlphabet, c) < 0 || len(b) == CodeLength {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), len(b) == CodeLength
}

// ShowCode is a normal code as it is shown: in two halves.
func ShowCode(code string) string {
	if len(code) != CodeLength {
		return code
	}
	return code[:CodeLength/2] + "-" + code[CodeLength/2:]
}

// ApproveSubject names what an approval's touch signs: the normal code.
func ApproveSubject(code string) string { return "code " + code }

// EnrollRequest is the body of POST /v1/enroll. The machine makes both secrets
// and sends their digests alone. Report is what it says of itself: display,
// never proof.
type EnrollRequest struct {
	InstallationDigest string       `json:"installation_digest"` // as in AdmitRequest
	CredentialDigest   string       `json:"credential_digest"`
	PollDigest         string       `json:"poll_digest"` // SHA-256 of the poll secret, hex
	Report             EnrollReport `json:"report"`
}

// EnrollReport is what a machine says of itself before anybody vouches for it.
type EnrollReport struct {
	Host           string `json:"host"`
	Account        string `json:"account"`
	OS             string `json:"os"`
	Arch           string `json:"arch"`
	Version        string `json:"version"`
	Scope          string `json:"scope"`
	ServiceManager string `json:"service_manager,omitempty"`
}

// EnrollAnswer is its answer. The code only finds the request.
type EnrollAnswer struct {
	Code      string  `json:"code"` // as ShowCode shows it
	URL       string  `json:"url"`  // of the page; the code stands in no URL
	ExpiresAt Time    `json:"expires_at"`
	ExpiresS  float64 `json:"expires_s"`
	PollS     float64 `json:"poll_s"` // wait this long between two polls
}

// States of a poll. Whatever else became of a request is one and the same 401.
const (
	EnrollWaiting  = "waiting"
	EnrollApproved = "approved"
)

// EnrollPollAnswer is the answer to POST /v1/enroll/poll, whose bearer is the
// poll secret. Approved is answered once, and carries no secret.
type EnrollPollAnswer struct {
	Status     string  `json:"status"`
	PollS      float64 `json:"poll_s,omitempty"`
	Machine    string  `json:"machine,omitempty"`
	Generation int64   `json:"generation,omitempty"`
	Name       string  `json:"name,omitempty"`
	Owner      string  `json:"owner,omitempty"`
}

// CodeRequest is the body of the three requests about a waiting machine. Name,
// Labels and Touch go with an approval.
type CodeRequest struct {
	Code   string            `json:"code"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Touch  *Touch            `json:"touch,omitempty"` // where the plane demands one; over ApproveSubject
}

// Schemas of enrolment.
const (
	SchemaEnrollment = "fleet.enrollment/v1"
	SchemaEnrolled   = "fleet.enrolled/v1"
)

// Enrollment is fleet.enrollment/v1: a machine that waits. Unproven is always
// true: nobody has vouched for the report.
type Enrollment struct {
	Schema      string       `json:"schema"`
	Code        string       `json:"code"`
	Unproven    bool         `json:"unproven"`
	Report      EnrollReport `json:"report"`
	RequestedAt Time         `json:"requested_at"`
	ExpiresAt   Time         `json:"expires_at"`
}

// Outcomes of a decision, besides those of an admission.
const (
	EnrollDenied = "denied"
)

// Enrolled is fleet.enrolled/v1: what was decided about a waiting machine.
type Enrolled struct {
	Schema  string       `json:"schema"`
	Status  string       `json:"status"` // new | replaced | same | denied
	Machine string       `json:"machine,omitempty"`
	Name    string       `json:"name,omitempty"`
	Owner   string       `json:"owner,omitempty"`
	Report  EnrollReport `json:"report"`
}

// SchemaWebLink names the WebLink document.
const SchemaWebLink = "fleet.web-link/v1"

// WebLink is fleet.web-link/v1: a link that signs the person who asked for it
// in to the plane's pages, once and for a short time.
type WebLink struct {
	Schema    string `json:"schema"`
	URL       string `json:"url"`
	ExpiresAt Time   `json:"expires_at"`
}
