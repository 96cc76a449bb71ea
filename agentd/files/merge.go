package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"unicode/utf8"

	"fleet.example/fleet/core/wire"
)

const (
	// maxJSON bounds each side of a merge, in bytes.
	maxJSON = 4 << 20
	// mergeTries is how often a merge begins again because another writer was
	// quicker.
	mergeTries = 10
)

// errOvertaken says that another writer came first.
var errOvertaken = errors.New("another writer came first")

// merge writes the members of the object that comes over those of the object
// that is there.
func (w *writing) merge(st fs.FileInfo) error {
	var source bytes.Buffer
	if err := w.receive(&source, io.LimitReader(w.content.Body, maxJSON+1)); err != nil {
		return err
	}
	if source.Len() > maxJSON {
		return refuse(wire.CodeTooLarge, "what is merged has at most %d bytes", maxJSON)
	}
	members, err := object(source.Bytes())
	if err != nil {
		return refuse(wire.CodeNotJSON, "what was sent is no JSON object: %v", err)
	}
	sent := source.Bytes()
	w.content.Sum = nil // compared above
	for range mergeTries {
		content := sent
		if st != nil {
			if content, err = w.merged(members); err != nil {
				return err
			}
		}
		if err = w.replace(st, bytes.NewReader(content)); !errors.Is(err, errOvertaken) {
			return err
		}
		if _, st, err = w.files.target(w.at); err != nil {
			return err
		}
		if err := w.content.check(w.at, st); err != nil {
			return err
		}
	}
	return refuse(wire.CodeConflict, "others write to %s all the time", w.at)
}

// merged is what is there with the members over it.
func (w *writing) merged(members []member) ([]byte, error) {
	file, _, err := w.files.Open(w.at)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxJSON+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxJSON {
		return nil, refuse(wire.CodeTooLarge, "%s has more than %d bytes; it is as it was", w.at, maxJSON)
	}
	there, err := object(b)
	if err != nil {
		return nil, refuse(wire.CodeNotJSON, "%s is no JSON object: %v; it is as it was", w.at, err)
	}
	return join(there, members), nil
}

// member is one of an object's, with its value as it was written.
type member struct {
	key   string
	value json.RawMessage
}

// object reads the members of a JSON object, in their order. Of two with one
// key the later counts.
func object(b []byte) ([]member, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is no UTF-8")
	}
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(b, &whole); err != nil {
		return nil, err
	}
	if whole == nil {
		return nil, errors.New("it is null")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil { // the brace
		return nil, err
	}
	var members []member
	place := map[string]int{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		if i, twice := place[key]; twice {
			members[i].value = v
			continue
		}
		place[key] = len(members)
		members = append(members, member{key, v})
	}
	return members, nil
}

// join writes an object: the members that are there, each with the new value
// where there is one, then the new ones.
func join(there, over []member) []byte {
	place := map[string]int{}
	all := append([]member(nil), there...)
	for i, m := range all {
		place[m.key] = i
	}
	for _, m := range over {
		if i, ok := place[m.key]; ok {
			all[i].value = m.value
			continue
		}
		all = append(all, m)
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		key := json.NewEncoder(&b)
		key.SetEscapeHTML(false)
		key.Encode(m.key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	var out bytes.Buffer
	if json.Indent(&out, b.Bytes(), "", "  ") != nil {
		panic("files: members that are no JSON") // they were read as it
	}
	out.WriteByte('\n')
	return out.Bytes()
}

var _ Tree = (*os.Root)(nil)
