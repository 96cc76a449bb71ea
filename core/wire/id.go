package wire

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"strings"
)

// MachineIDPrefix starts every machine id.
const MachineIDPrefix = "m_"

// machineIDLen is the prefix and 26 base32 characters: 128 bits.
const machineIDLen = len(MachineIDPrefix) + 26

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewMachineID returns a fresh machine id from 128 random bits.
func NewMachineID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return MachineIDPrefix + idEncoding.EncodeToString(b[:])
}

// IsMachineID reports whether s has the form of a machine id. It says nothing
// about whether such a machine exists.
func IsMachineID(s string) bool {
	if len(s) != machineIDLen || !strings.HasPrefix(s, MachineIDPrefix) {
		return false
	}
	for _, c := range s[len(MachineIDPrefix):] {
		if !(c >= 'a' && c <= 'z' || c >= '2' && c <= '7') {
			return false
		}
	}
	return true
}

// SessionIDPrefix starts every session id.
const SessionIDPrefix = "s_"

// NewSessionID returns a fresh session id from 50 random bits.
func NewSessionID() string {
	var b [7]byte
	rand.Read(b[:])
	return SessionIDPrefix + idEncoding.EncodeToString(b[:])[:10]
}

// IsSessionID reports whether s has the form of a session id.
func IsSessionID(s string) bool {
	if len(s) != len(SessionIDPrefix)+10 || !strings.HasPrefix(s, SessionIDPrefix) {
		return false
	}
	for _, c := range s[len(SessionIDPrefix):] {
		if !(c >= 'a' && c <= 'z' || c >= '2' && c <= '7') {
			return false
		}
	}
	return true
}

// ErrName is returned for a name that is not [A-Za-z0-9._-]{1,63}.
var ErrName = errors.New("a name has 1 to 63 characters of A-Z a-z 0-9 . _ - and does not begin with -")

// CheckName returns ErrName unless s is a valid name of a machine, label key,
// person, token or workspace. Nothing shaped like a machine id is a name, nor
// what a path or a command line takes for something else.
func CheckName(s string) error {
	if s == "." || s == ".." || strings.HasPrefix(s, "-") {
		return ErrName
	}
	return checkWord(s)
}

func checkWord(s string) error {
	if len(s) < 1 || len(s) > 63 || IsMachineID(s) {
		return ErrName
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return ErrName
		}
	}
	return nil
}

// CheckLabelValue is CheckName, but a label's value may be empty, and any word
// of the same letters: it stands in no path.
func CheckLabelValue(s string) error {
	if s == "" {
		return nil
	}
	return checkWord(s)
}
