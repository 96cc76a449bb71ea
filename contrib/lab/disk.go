//go:build linux

package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fresh are the directories of which a host sees nothing of the machine's own: who lives here, what was enabled
// here, and its secrets.
var fresh = [...]struct {
	path string
	mode os.FileMode
}{
	{"home", 0o755},
	{"root", 0o700},
	{"etc/systemd/system", 0o755},
	{"etc/rc2.d", 0o755}, {"etc/rc3.d", 0o755}, {"etc/rc4.d", 0o755}, {"etc/rc5.d", 0o755}, {"etc/rcS.d", 0o755},
	{"etc/ssh", 0o755},
	{"var/lib/systemd", 0o755},
	{"var/log/journal", 0o755},
	{"var/spool/cron", 0o755},
	{"var/tmp", os.ModeSticky | 0o777},
	{"tmp", os.ModeSticky | 0o777},
	{"run", 0o755},
}

// Where a host keeps crontabs and what runs them, below its root.
const (
	CronSpool = "var/spool/cron/crontabs"
	CronUnit  = "lib/systemd/system/cron.service"
)

// makeDisk mounts the host's disk on h.root() and makes it a machine of its own.
func (h *Host) makeDisk(ctx context.Context) error {
	if err := os.Mkdir(h.dir, 0o711); err != nil {
		return fmt.Errorf("cannot make disk: %w", err)
	}
	if err := unix.Mount("fleetlab", h.dir, "tmpfs", 0, "mode=0711"); err != nil {
		return fmt.Errorf("cannot mount tmpfs: %w", err)
	}
	upper, work := h.dir+"/upper", h.dir+"/work"
	for _, dir := range []string{upper, work, h.root()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make disk: %w", err)
		}
	}
	for _, d := range fresh {
		dir := filepath.Join(upper, d.path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make disk: %w", err)
		}
		if err := os.Chmod(dir, d.mode); err != nil {
			return fmt.Errorf("cannot make disk: %w", err)
		}
		if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("cannot make disk: opaque %s: %w", d.path, err)
		}
	}
	if err := unix.Mount("fleetlab", h.root(), "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("cannot mount overlay: %w", err)
	}
	if err := h.writeSystem(); err != nil {
		return fmt.Errorf("cannot make disk: %w", err)
	}
	if err := h.writeServer(ctx); err != nil {
		return fmt.Errorf("cannot set up ssh server: %w", err)
	}
	if h.spec.NoSystemd {
		if err := h.writeInit(); err != nil {
			return fmt.Errorf("cannot do without systemd: %w", err)
		}
	}
	for _, a := range h.spec.Accounts {
		if err := h.makeAccount(a); err != nil {
			return fmt.Errorf("cannot make account %s: %w", a.Name, err)
		}
	}
	if h.spec.Prepare != nil {
		if err := h.spec.Prepare(h.root()); err != nil {
			return fmt.Errorf("cannot prepare host %s: %w", h.spec.Name, err)
		}
	}
	return nil
}

func (h *Host) writeSystem() error {
	id := make([]byte, 16)
	rand.Read(id)
	files := map[string]string{
		"etc/machine-id":  hex.EncodeToString(id) + "\n",
		"etc/hostname":    h.spec.Name + "\n",
		"etc/hosts":       "127.0.0.1 localhost\n" + h.Addr() + " " + h.spec.Name + "\n" + h.planeAddr() + " plane\n",
		"etc/resolv.conf": "",
		"etc/fstab":       "",
		// Without these two, systemd takes the disk for one that was just updated and spends seconds on it.
		"etc/.updated": "",
		"var/.updated": "",
	}
	for name, text := range files {
		if err := h.replace(name, text, 0o644); err != nil {
			return err
		}
	}
	units := filepath.Join(h.root(), "etc/systemd/system")
	links := map[string]string{
		"default.target":                      "/lib/systemd/system/multi-user.target",
		"console-getty.service":               "/dev/null",
		"systemd-networkd.service":            "/dev/null",
		"systemd-resolved.service":            "/dev/null",
		"systemd-timesyncd.service":           "/dev/null",
		"ssh.socket":                          "/dev/null",
		"sshd.service":                        "/dev/null",
		"multi-user.target.wants/ssh.service": "../ssh.service",
	}
	if _, err := os.Stat(filepath.Join(h.root(), CronUnit)); err == nil {
		links["multi-user.target.wants/cron.service"] = "/" + CronUnit
	}
	for name, to := range links {
		path := filepath.Join(units, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(to, path); err != nil {
			return err
		}
	}
	if err := h.makeCronSpool(); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(h.root(), "var/lib/systemd/linger"), 0o755)
}

// makeCronSpool makes the directory of crontabs as Debian's package does: the
// machine's own may be missing, and shows other people's lines if it is not.
func (h *Host) makeCronSpool() error {
	gid, err := h.groupID("crontab")
	if err != nil || gid < 0 {
		return err // without the group there is no crontab here
	}
	spool := filepath.Join(h.root(), CronSpool)
	if err := os.MkdirAll(spool, 0o755); err != nil {
		return err
	}
	if err := os.Chown(spool, 0, gid); err != nil {
		return err
	}
	return os.Chmod(spool, os.ModeSticky|0o730)
}

// groupID looks a group of the host up; -1 if there is none.
func (h *Host) groupID(name string) (int, error) {
	data, err := os.ReadFile(filepath.Join(h.root(), "etc/group"))
	if err != nil {
		return -1, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[0] == name {
			return strconv.Atoi(f[2])
		}
	}
	return -1, nil
}

// replace writes a file of the host without following a link that stands there.
func (h *Host) replace(name, text string, mode os.FileMode) error {
	path := filepath.Join(h.root(), name)
	os.Remove(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func (h *Host) makeAccount(a Account) error {
	if a.Name != "root" {
		lines := [...]struct {
			file, line string
			mode       os.FileMode
		}{
			{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:%s", a.Name, a.UID, a.UID, a.Home, a.Shell), 0o644},
			{"etc/group", fmt.Sprintf("%s:x:%d:", a.Name, a.UID), 0o644},
			{"etc/shadow", fmt.Sprintf("%s:%s:19000:0:99999:7:::", a.Name, a.Password), 0o600},
		}
		for _, l := range lines {
			if err := h.setLine(l.file, l.line, l.mode); err != nil {
				return err
			}
		}
	}
	home := filepath.Join(h.root(), a.Home)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if a.NoExec {
		flags |= unix.MS_NOEXEC
	}
	data := fmt.Sprintf("size=%d,mode=0700,uid=%d,gid=%d", a.HomeBytes, a.UID, a.UID)
	if err := unix.Mount("fleetlab-home", home, "tmpfs", flags, data); err != nil {
		return fmt.Errorf("cannot mount home: %w", err)
	}
	keys := h.spec.AuthorizedKeys
	if !h.spec.NoLabKey {
		key, err := h.lab.publicKey()
		if err != nil {
			return err
		}
		keys = append([]string{key}, keys...)
	}
	ssh := filepath.Join(home, ".ssh")
	if err := os.Mkdir(ssh, 0o700); err != nil {
		return err
	}
	authorized := filepath.Join(ssh, "authorized_keys")
	if err := os.WriteFile(authorized, []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	own := []string{ssh, authorized}
	for name, text := range a.Files {
		path := filepath.Join(home, name)
		for dir := filepath.Dir(path); dir != home; dir = filepath.Dir(dir) {
			own = append(own, dir)
		}
		own = append(own, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, path := range own {
		if err := os.Chown(path, a.UID, a.UID); err != nil {
			return err
		}
	}
	if a.NoLinger {
		return nil
	}
	return h.replace("var/lib/systemd/linger/"+a.Name, "", 0o644)
}

// setLine puts a line into a file of the passwd family, in place of one for the same name.
func (h *Host) setLine(file, line string, mode os.FileMode) error {
	data, err := os.ReadFile(filepath.Join(h.root(), file))
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(line, ":")
	var out strings.Builder
	for old := range strings.Lines(string(data)) {
		if !strings.HasPrefix(old, name+":") {
			out.WriteString(strings.TrimRight(old, "\n") + "\n")
		}
	}
	out.WriteString(line + "\n")
	return h.replace(file, out.String(), mode)
}
