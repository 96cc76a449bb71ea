package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// maxFile bounds every file that is read here.
const maxFile = 1 << 20

// FS is the directory as this package uses it. Each method is one step after
// which a crash may come.
type FS interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error // a fresh file, 0600 from the start
	Sync(name string) error
	Rename(from, to string) error
	Link(from, to string) error
	Remove(name string) error
	SyncDir() error
	// Lock keeps other processes from changing the files.
	Lock() (unlock func(), err error)
}

// Dir is the FS of a real directory.
type Dir string

func (d Dir) path(name string) string { return filepath.Join(string(d), name) }

func (d Dir) Read(name string) ([]byte, error) { return durable.ReadPrivate(d.path(name), maxFile) }

func (d Dir) Write(name string, data []byte) error {
	os.Remove(d.path(name))
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func (d Dir) Sync(name string) error {
	f, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d Dir) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }
func (d Dir) Link(from, to string) error   { return os.Link(d.path(from), d.path(to)) }
func (d Dir) SyncDir() error               { return durable.SyncDir(string(d)) }

func (d Dir) Remove(name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

const lockWait = 5 * time.Second

func (d Dir) Lock() (func(), error) {
	f, err := os.OpenFile(d.path("credential.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(10 * time.Millisecond) {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, fmt.Errorf("cannot lock credential: %w", err)
		case time.Now().After(deadline):
			f.Close()
			return nil, errors.New("cannot lock credential: another process keeps it")
		}
	}
}

// Credential is one generation of a machine's secret.
type Credential struct {
	Machine    string
	Generation int64
	Secret     secret.Text
	// Answers is the plane's request that this generation was made for, or
	// zero. It is part of the file, so that whoever holds the secret knows which
	// request using it answers: no second record can disagree with it (R16).
	Answers time.Time
}

func (c *Credential) is(o *Credential) bool {
	return c != nil && o != nil && c.Machine == o.Machine && c.Generation == o.Generation && c.Secret.Digest() == o.Secret.Digest()
}

// file is a credential's form on disk. The digest lets a reader recognise
// content that is whole JSON and still not what was written.
type file struct {
	Schema     string `json:"schema"`
	Machine    string `json:"machine"`
	Generation int64  `json:"generation"`
	Secret     string `json:"secret"`
	Digest     string `json:"digest"`
	// Answers is the value of the request that was answered, if one was.
	Answers time.Time `json:"answers,omitzero"`
}

const fileSchema = "fleet.machine-secret/v1"

func encode(c *Credential) []byte {
	b, err := json.Marshal(file{fileSchema, c.Machine, c.Generation, c.Secret.Reveal(), c.Secret.Digest().Hex(), c.Answers})
	if err != nil {
		panic(err) // strings and a number
	}
	return append(b, '\n')
}

var errDamaged = errors.New("it is damaged")

// decode reads a credential file. Its errors never quote the content.
func decode(b []byte) (*Credential, error) {
	var f file
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("it is empty")
	}
	if json.Unmarshal(b, &f) != nil {
		return nil, errDamaged
	}
	c := &Credential{Machine: f.Machine, Generation: f.Generation, Secret: secret.Of(f.Secret), Answers: f.Answers}
	if f.Schema != fileSchema || !wire.IsMachineID(f.Machine) || f.Generation < 1 || c.Secret.Empty() || c.Secret.Digest().Hex() != f.Digest {
		return nil, errDamaged
	}
	return c, nil
}

// Replace puts data under name: staged, synced, renamed, the directory synced,
// read back.
func Replace(d FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := d.Write(tmp, data); err != nil {
		d.Remove(tmp)
		return err
	}
	if err := d.Sync(tmp); err != nil {
		return err
	}
	if back, err := d.Read(tmp); err != nil || !bytes.Equal(back, data) {
		return errors.Join(errors.New("what was written does not read back"), err)
	}
	if err := d.Rename(tmp, name); err != nil {
		return err
	}
	if err := d.SyncDir(); err != nil {
		return err
	}
	if back, err := d.Read(name); err != nil || !bytes.Equal(back, data) {
		return errors.Join(errors.New("what was written does not read back"), err)
	}
	return nil
}
