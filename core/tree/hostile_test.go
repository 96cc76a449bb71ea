package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// frames is what a hostile peer says.
type frames []byte

func (f frames) dir(id, parent uint32, name string) frames {
	return dirFrame{id: id, parent: parent, mode: 0o755, name: name}.append(f)
}

func (f frames) up(id uint32) frames { return appendID(f, DirUp, id) }

func (f frames) link(dir uint32, name, target string) frames {
	return linkFrame{dir: dir, name: name, target: target}.append(f)
}

func (f frames) small(dir uint32, name, content string) frames {
	return smallFrame{dir: dir, mode: 0o644, name: name, content: []byte(content), sum: sha256.Sum256([]byte(content))}.append(f)
}

func (f frames) large(id, dir uint32, name string, size int64) frames {
	return largeFrame{id: id, dir: dir, mode: 0o644, name: name, size: size}.append(f)
}

func (f frames) block(id uint32, index int64, content string) frames {
	return appendBlock(f, id, index, sha256.Sum256([]byte(content)), []byte(content))
}

func (f frames) over() frames { return AppendRaw(f, Over, nil) }

// received is what a receiver makes of them.
func (f frames) received(t *testing.T, to, base string, o ReceiveOptions) (Result, []Problem, error) {
	t.Helper()
	dst, err := OpenDestination(Local{}, to, base, "")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	x, y := pair(t)
	var problems []Problem
	o.Trouble = func(p Problem) { problems = append(problems, p) }
	r := NewReceiver(context.Background(), y, dst, o)
	var wg sync.WaitGroup
	wg.Go(func() {
		x.Write(f)
		x.(interface{ CloseWrite() error }).CloseWrite()
		io.Copy(io.Discard, x)
	})
	result, err := r.Run()
	x.Close()
	wg.Wait()
	return result, problems, err
}

// What a machine says leads nowhere but to where the person said (scp's classic
// fault), and breaks nothing there.
func TestNothingLeadsOutOfTheDestination(t *testing.T) {
	for name, bad := range map[string]frames{
		"parent":         frames(nil).dir(1, 0, "").small(1, "..", "x"),
		"up and down":    frames(nil).dir(1, 0, "").small(1, "../victim", "x"),
		"absolute":       frames(nil).dir(1, 0, "").small(1, "/victim", "x"),
		"itself":         frames(nil).dir(1, 0, "").dir(2, 1, "."),
		"parent made":    frames(nil).dir(1, 0, "").dir(2, 1, ".."),
		"no name":        frames(nil).dir(1, 0, "").small(1, "", "x"),
		"zero byte":      frames(nil).dir(1, 0, "").small(1, "a\x00b", "x"),
		"long":           frames(nil).dir(1, 0, "").small(1, strings.Repeat("a", 300), "x"),
		"link out":       frames(nil).dir(1, 0, "").link(1, "../victim", "x"),
		"large out":      frames(nil).dir(1, 0, "").large(1, 1, "../victim", 1),
		"own name":       frames(nil).small(0, "victim", "x"),
		"own directory":  frames(nil).dir(1, 0, "victim"),
		"two things":     frames(nil).small(0, "", "x").small(0, "", "y"),
		"no directory":   frames(nil).dir(1, 0, "").small(2, "x", "x"),
		"closed":         frames(nil).dir(1, 0, "").up(1).small(1, "x", "x"),
		"closed twice":   frames(nil).dir(1, 0, "").up(1).up(1),
		"out of order":   frames(nil).dir(2, 0, ""),
		"reused":         frames(nil).dir(1, 0, "").dir(1, 1, "a"),
		"never closed":   frames(nil).dir(1, 0, "").over(),
		"unannounced":    frames(nil).block(1, 0, "x"),
		"beyond":         frames(nil).large(1, 0, "", 1).block(1, 1, "x"),
		"twice":          frames(nil).large(1, 0, "", BlockSize+1).block(1, 1, "x").block(1, 1, "x"),
		"too much":       frames(nil).large(1, 0, "", 1).block(1, 0, "xy"),
		"not all":        append(frames(nil).large(1, 0, "", 1), frames(appendID(nil, End, 1)).over()...),
		"kept unseen":    append(frames(nil).large(1, 0, "", 1), appendRange(nil, Keep, 1, 0, 1)...),
		"asked for none": append(frames(nil).large(1, 0, "", 1), appendRange(nil, Ask, 1, 0, 0)...),
		"long hole":      append(frames(nil).large(1, 0, "", 1), appendRange(nil, Hole, 1, 0, 1<<62)...),
		"many open":      manyOpen(),
		"endless":        frames(nil).large(1, 0, "", 1<<62),
		"unknown":        AppendRaw(nil, '?', nil),
		"receiver's":     AppendRaw(nil, Go, make([]byte, 13)),
		"cut short":      AppendRaw(nil, Dir, []byte{0, 0, 0, 1}),
		"oversized":      {byte(Small), 0xff, 0xff, 0xff, 0xff},
		"truncated":      frames(nil).small(0, "", "x")[:20],
		"nothing":        {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/victim", "mine", 0o600)
			if err := os.Mkdir(dir+"/to", 0o700); err != nil {
				t.Fatal(err)
			}
			_, _, err := bad.received(t, dir+"/to", "", ReceiveOptions{Recursive: true})
			if err == nil {
				t.Error("it is taken")
			}
			intact(t, dir)
		})
	}
}

func manyOpen() frames {
	f := frames(nil).dir(1, 0, "")
	for i := range uint32(maxFiles + 1) {
		f = f.large(i+1, 1, string(rune('a'+i)), 1)
	}
	return f
}

// intact says that beside the destination nothing is new or changed.
func intact(t *testing.T, dir string) {
	t.Helper()
	if b, err := os.ReadFile(dir + "/victim"); err != nil || string(b) != "mine" {
		t.Errorf("the victim is %q, %v", b, err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("there are %v", list)
	}
	if left, _ := filepath.Glob(dir + "/to/" + tempName + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// A symbolic link in the way is not followed: neither one that was there nor one
// that the sender has just made.
func TestNoLinkIsFollowed(t *testing.T) {
	for name, target := range map[string]string{"out": "..", "in": "."} {
		for made, link := range map[string]bool{"there": true, "just made": false} {
			t.Run(name+" "+made, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir+"/victim", "mine", 0o600)
				if err := os.Mkdir(dir+"/to", 0o700); err != nil {
					t.Fatal(err)
				}
				f := frames(nil).dir(1, 0, "")
				if link {
					if err := os.Symlink(target, dir+"/to/l"); err != nil {
						t.Fatal(err)
					}
				} else {
					f = f.link(1, "l", target)
				}
				f = f.dir(2, 1, "l").small(2, "victim", "x").link(2, "more", "x").large(1, 2, "large", 1).up(2).
					link(1, "v", "../victim").small(1, "v", "x").up(1).over()
				result, problems, err := f.received(t, dir+"/to", "", ReceiveOptions{Recursive: true})
				if err != nil || len(problems) != 1 || result.Files != 1 {
					t.Errorf("%+v, %v, %v", result, problems, err)
				}
				intact(t, dir)
				if to, err := os.Readlink(dir + "/to/l"); err != nil || to != target {
					t.Errorf("the link leads to %q, %v", to, err)
				}
				if st, err := os.Lstat(dir + "/to/v"); err != nil || !st.Mode().IsRegular() {
					t.Errorf("%v, %v", st, err)
				}
				if list, _ := os.ReadDir(dir + "/to"); len(list) != 2 {
					t.Errorf("there are %v", list)
				}
			})
		}
	}
}

// Who asked for a file gets no directory and no link.
func TestAFileIsAllThatComes(t *testing.T) {
	for _, bad := range []frames{frames(nil).dir(1, 0, ""), frames(nil).link(0, "", "x")} {
		dir := t.TempDir()
		if _, _, err := bad.received(t, dir+"/to", "", ReceiveOptions{}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v", err)
		}
		if list, _ := os.ReadDir(dir); len(list) != 0 {
			t.Errorf("there are %v", list)
		}
	}
}

// What is not what its checksum says is not taken, and the old content stays.
func TestDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/to", "old", 0o600)
	small := frames(nil).small(0, "", "new")
	small[len(small)-1] ^= 1
	large := frames(nil).large(1, 0, "", 3).block(1, 0, "new")
	large[len(large)-1] ^= 1
	quick := frames(appendBlock(frames(nil).large(1, 0, "", 3), 1, 0, XXH64.of([]byte("new")), []byte("nEw")))
	for _, bad := range []struct {
		frames frames
		sum    Sum
	}{{small.over(), SHA256}, {frames(appendID(large, End, 1)).over(), SHA256}, {frames(appendID(quick, End, 1)).over(), XXH64}} {
		result, problems, err := bad.frames.received(t, dir+"/to", "", ReceiveOptions{Sum: bad.sum})
		if err != nil || result.Files != 0 || len(problems) != 1 || problems[0].Code != "damaged" {
			t.Errorf("%+v, %v, %v", result, problems, err)
		}
		if b, _ := os.ReadFile(dir + "/to"); string(b) != "old" {
			t.Errorf("%q", b)
		}
		if list, _ := os.ReadDir(dir); len(list) != 1 {
			t.Errorf("there are %v", list)
		}
	}
}

// A temporary name that somebody else made is not written to.
func TestATemporaryNameOfOthersIsLeft(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("x", 1000)
	f := largeFrame{id: 1, mode: 0o644, size: 1000}
	write(t, dir+"/victim", "mine", 0o600)
	if err := errors.Join(os.Mkdir(dir+"/to", 0o700), os.Symlink("../victim", dir+"/to/"+partName(f, "name"))); err != nil {
		t.Fatal(err)
	}
	all := frames(appendID(frames(f.append(nil)).block(1, 0, content), End, 1)).over()
	result, problems, err := all.received(t, dir+"/to", "name", ReceiveOptions{})
	if b, _ := os.ReadFile(dir + "/to/name"); err != nil || string(b) != content || result.Files != 1 {
		t.Errorf("%q, %+v, %v, %v", b, result, problems, err)
	}
	if b, _ := os.ReadFile(dir + "/victim"); string(b) != "mine" {
		t.Errorf("%q", b)
	}
	// Nor one that is readable to others, or has another name.
	os.Remove(dir + "/to/" + partName(f, "name"))
	write(t, dir+"/to/"+partName(f, "name"), "theirs", 0o666)
	all.received(t, dir+"/to", "name", ReceiveOptions{})
	if b, _ := os.ReadFile(dir + "/to/" + partName(f, "name")); string(b) != "theirs" {
		t.Errorf("%q", b)
	}
}

// A receiver cannot bring a sender to say more than the copy, or to wait for
// ever.
func TestAReceiverOutOfOrderEndsTheCopy(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/from", string(make([]byte, 1<<20)), 0o600)
	for name, bad := range map[string][]byte{
		"answer to nothing":  appendGo(nil, 7, Send, 0),
		"answered twice":     appendGo(appendGo(nil, 1, Send, 0), 1, Send, 0),
		"has more than all":  appendGo(nil, 1, Send, 1000),
		"odd verdict":        appendGo(nil, 1, 9, 0),
		"unasked hashes":     appendHave(appendGo(nil, 1, Send, 4), 1, 1, make([]byte, hashLen)),
		"hashes of nothing":  appendHave(nil, 9, 0, make([]byte, hashLen)),
		"half a hash":        appendHave(nil, 1, 0, make([]byte, 7)),
		"no result":          AppendRaw(nil, Done, []byte("[")),
		"a sender's frame":   dirFrame{id: 1}.append(nil),
		"oversized":          {byte(Ack), 0xff, 0, 0, 0},
		"truncated":          {byte(Ack), 0, 0},
		"a negative number":  appendAck(nil, -1, 0),
		"trouble that is no": AppendRaw(nil, Trouble, []byte("{")),
	} {
		t.Run(name, func(t *testing.T) {
			src, err := OpenSource(Local{}, dir+"/from", false)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			x, y := pair(t)
			s := NewSender(context.Background(), x, src, SendOptions{})
			var wg sync.WaitGroup
			wg.Go(func() {
				if typ, _, err := NewReader(y).Next(); err != nil || typ != Large {
					t.Errorf("%q, %v", typ, err)
				}
				y.Write(bad)
				y.(interface{ CloseWrite() error }).CloseWrite()
				io.Copy(io.Discard, y)
			})
			if _, err := s.Run(); err == nil {
				t.Error("it is taken")
			}
			wg.Wait()
		})
	}
}

// A relay passes a copy on, and what its ends break ends it.
func TestARelay(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/from", string(make([]byte, 5<<20)), 0o600)
	src, err := OpenSource(Local{}, dir+"/from", false)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := OpenDestination(Local{}, dir+"/to", "from", "")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, b := pair(t)
	c, d := pair(t)
	s := NewSender(ctx, a, src, SendOptions{})
	r := NewReceiver(ctx, d, dst, ReceiveOptions{})
	var wg sync.WaitGroup
	var sent, received error
	wg.Go(func() { _, sent = s.Run() })
	wg.Go(func() { _, received = r.Run() })
	wide := false
	result, err := Relay(ctx, b, c, RelayOptions{Wide: func() { wide = true }})
	wg.Wait()
	if err != nil || sent != nil || received != nil || result.Bytes != 5<<20 || !wide {
		t.Errorf("%+v, %v, %v, %v", result, err, sent, received)
	}
	for _, bad := range [][]byte{{byte(Small), 0xff, 0, 0, 0}, AppendRaw(nil, Trouble, []byte("{")), {}} {
		a, b := pair(t)
		c, d := pair(t)
		wg.Go(func() { a.Write(bad); a.Close() })
		wg.Go(func() { io.Copy(io.Discard, d) })
		if _, err := Relay(ctx, b, c, RelayOptions{}); err == nil {
			t.Errorf("%q is passed on", bad)
		}
		wg.Wait()
	}
}

// Whatever bytes come, a receiver neither panics nor hangs, and makes nothing
// outside.
func FuzzReceiver(f *testing.F) {
	f.Add([]byte(frames(nil).dir(1, 0, "").small(1, "a", "x").link(1, "l", "..").dir(2, 1, "d").up(2).up(1).over()))
	f.Add(appendID(frames(nil).large(1, 0, "", 3).block(1, 0, "new"), End, 1))
	f.Add(appendRange(appendRange(frames(nil).large(1, 0, "", 3*BlockSize), Hole, 1, 1, 2), Ask, 1, 0, 0))
	f.Fuzz(func(t *testing.T, in []byte) {
		dir := t.TempDir()
		write(t, dir+"/victim", "mine", 0o600)
		if err := os.Mkdir(dir+"/to", 0o700); err != nil {
			t.Fatal(err)
		}
		frames(in).received(t, dir+"/to", "base", ReceiveOptions{Recursive: true})
		if b, _ := os.ReadFile(dir + "/victim"); string(b) != "mine" {
			t.Errorf("the victim is %q", b)
		}
		if list, _ := os.ReadDir(dir); len(list) != 2 {
			t.Errorf("there are %v", list)
		}
		if list, _ := os.ReadDir(dir + "/to"); len(list) > 2 {
			t.Errorf("there are %v", list)
		}
	})
}

// FuzzSender holds a sender against whatever a receiver says.
func FuzzSender(f *testing.F) {
	f.Add(appendGo(nil, 1, Send, 1))
	f.Add(appendHave(appendGo(nil, 1, Send, 2), 1, 0, make([]byte, 2*hashLen)))
	f.Add(AppendRaw(nil, Done, []byte("{}")))
	f.Fuzz(func(t *testing.T, in []byte) {
		dir := t.TempDir()
		write(t, dir+"/from", string(make([]byte, 2*BlockSize+1)), 0o600)
		src, err := OpenSource(Local{}, dir+"/from", false)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		x, y := pair(t)
		s := NewSender(context.Background(), x, src, SendOptions{})
		var wg sync.WaitGroup
		wg.Go(func() {
			NewReader(y).Next()
			y.Write(in)
			y.(interface{ CloseWrite() error }).CloseWrite()
			io.Copy(io.Discard, y)
		})
		s.Run()
		wg.Wait()
	})
}
