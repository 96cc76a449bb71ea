package wire

import (
	"encoding/json"
	"unicode/utf8"
)

// A command's words and variables are bytes, of which JSON strings can hold
// those that are UTF-8. The others travel in base64, under names of their own,
// so that what runs is what was asked for: a name in Latin-1 never comes to mean
// another file. So do long ones, of which JSON may make six bytes for one.
type exactRequest struct {
	plainRequest
	ArgvB64 [][]byte          `json:"argv_b64,omitempty"` // the whole argv, in place of argv
	EnvB64  map[string][]byte `json:"env_b64,omitempty"`  // beside env
}

// longWords is from what length on base64 is used for the sake of size.
const longWords = 32 << 10

type plainRequest SessionRequest

// MarshalJSON keeps words and values exact.
func (r SessionRequest) MarshalJSON() ([]byte, error) {
	x := exactRequest{plainRequest: plainRequest(r)}
	size := 0
	for _, a := range r.Argv {
		if size += len(a); size > longWords || !utf8.ValidString(a) {
			x.Argv, x.ArgvB64 = nil, bytesOf(r.Argv)
			break
		}
	}
	for k, v := range r.Env {
		if len(v) <= longWords && utf8.ValidString(v) {
			continue
		}
		if x.EnvB64 == nil {
			x.EnvB64, x.Env = map[string][]byte{}, map[string]string{}
			for k, v := range r.Env {
				x.Env[k] = v
			}
		}
		x.EnvB64[k] = []byte(v)
		delete(x.Env, k)
	}
	return json.Marshal(x)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *SessionRequest) UnmarshalJSON(b []byte) error {
	x := exactRequest{plainRequest: plainRequest(*r)}
	if err := json.Unmarshal(b, &x); err != nil {
		return err
	}
	if len(x.ArgvB64) > 0 {
		x.Argv = make([]string, len(x.ArgvB64))
		for i, a := range x.ArgvB64 {
			x.Argv[i] = string(a)
		}
	}
	for k, v := range x.EnvB64 {
		if x.Env == nil {
			x.Env = map[string]string{}
		}
		x.Env[k] = string(v)
	}
	*r = SessionRequest(x.plainRequest)
	return nil
}

func bytesOf(words []string) [][]byte {
	b := make([][]byte, len(words))
	for i, w := range words {
		b[i] = []byte(w)
	}
	return b
}
