package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/planed/audit"
)

// metaBackup is when a backup was made. No store that a plane works on has it.
var metaBackup = []byte("backup")

// BackupError refuses to work on a backup's own file: what was deleted since it
// was made would live again.
type BackupError struct {
	Path string
	At   time.Time
}

func (e *BackupError) Error() string {
	return fmt.Sprintf("%s is a backup of %s, and no plane's store until it was restored", e.Path, e.At.UTC().Format(time.RFC3339))
}

// MarkBackup says of a copy that Backup wrote what it is.
func MarkBackup(path string, at time.Time) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(t *bbolt.Tx) error {
		return t.Bucket(bucketMeta).Put(metaBackup, binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro())))
	})
	return errors.Join(err, db.Close())
}

func backupTime(t *bbolt.Tx) time.Time {
	v := t.Bucket(bucketMeta).Get(metaBackup)
	if len(v) != 8 {
		return time.Time{}
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(v))).UTC()
}

// BackupAt is when the backup that this store was opened from was made, zero
// if it was not marked as one.
func (s *Store) BackupAt() (at time.Time, err error) {
	err = s.db.View(func(t *bbolt.Tx) error {
		at = backupTime(t)
		return nil
	})
	return at, err
}

// Voided counts what a restore ended.
type Voided struct {
	Sessions, Invitations, Enrolments int
}

// Unmark makes a backup a store again: whatever was handed out and may have
// been used, ended or taken back since is void, and the log says that the
// store was restored.
func (s *Store) Unmark(ctx context.Context, actor string, now time.Time) (Voided, error) {
	var v Voided
	err := s.do(ctx, func(t *tx) error {
		v = Voided{}
		made := backupTime(t.Tx)
		for _, part := range []struct {
			bucket []byte
			n      *int
		}{{bucketSession, &v.Sessions}, {bucketInvitation, &v.Invitations}, {bucketEnrolment, &v.Enrolments}, {bucketEnrolled, &v.Enrolments}} {
			var keys [][]byte
			err := t.Bucket(part.bucket).ForEach(func(k, _ []byte) error {
				keys = append(keys, append([]byte(nil), k...))
				return nil
			})
			if err != nil {
				return err
			}
			for _, k := range keys {
				if err := t.del(part.bucket, k); err != nil {
					return err
				}
			}
			*part.n += len(keys)
		}
		if err := t.del(bucketMeta, metaBackup); err != nil {
			return err
		}
		detail := map[string]string{"entries": strconv.FormatUint(t.head.Seq, 10)}
		if !made.IsZero() {
			detail["backup_at"] = made.Format(time.RFC3339)
		}
		return t.append(audit.Event{At: now, Actor: actor, Action: "plane.restore", Subject: "plane", Detail: detail})
	})
	return v, err
}
