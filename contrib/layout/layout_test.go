package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "fleet.example/fleet/"

// pkg is what go list says of a package. Imports are those of its non-test
// files.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	Imports    []string
}

// packages are all of the project's, for this platform.
var packages = sync.OnceValues(func() ([]pkg, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,CgoFiles,Imports", module+"...")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func ours(t *testing.T) []pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("go list names %d packages only", len(all))
	}
	return all
}

// below reports whether the path is the package or lies below it.
func below(path string, roots ...string) bool {
	for _, r := range roots {
		if path == r || strings.HasPrefix(path, r+"/") {
			return true
		}
	}
	return false
}

// rule forbids the packages below one of from every import of fleet's that is
// not below one of may.
type rule struct {
	from []string
	may  []string
	why  string
}

var rules = []rule{
	{from: []string{"core/wire"}, why: "the meeting point imports the standard library alone"},
	{from: []string{"plugins/proto"}, may: []string{"plugins/proto"}, why: "a vendor imports it, and nothing of fleet's with it"},
	{from: []string{"plugins/sdk"}, may: []string{"plugins/sdk", "plugins/proto"}, why: "a vendor imports it, and nothing of fleet's with it"},
	{from: []string{"contrib/vendorplugin"}, may: []string{"plugins/sdk", "plugins/proto", "contrib/vendorplugin"}, why: "the vendor's template has what a vendor has"},
	{from: []string{"agentd"}, may: []string{"agentd", "core", "plugins"}, why: "agentd meets planed in the wire types only"},
	{from: []string{"planed"}, may: []string{"planed", "core"}, why: "planed meets agentd in the wire types only"},
	{from: []string{"core"}, may: []string{"core", "plugins", "transports"}, why: "core is below agentd and planed"},
	{from: []string{"plugins"}, may: []string{"plugins", "core", "transports"}, why: "plugins are below the daemons"},
	{from: []string{"transports"}, may: []string{"transports", "plugins", "core"}, why: "transports are plugins"},
	{from: []string{"agentd", "planed", "core", "plugins", "transports"}, may: []string{"agentd", "planed", "core", "plugins", "transports"}, why: "nothing imports cmd or contrib"},
}

func TestImportsGoOneWay(t *testing.T) {
	for _, r := range rules {
		held := false
		for _, p := range ours(t) {
			from := strings.TrimPrefix(p.ImportPath, module)
			if !below(from, r.from...) {
				continue
			}
			held = true
			for _, imp := range p.Imports {
				to, fleet := strings.CutPrefix(imp, module)
				if fleet && !below(to, r.may...) {
					t.Errorf("%s imports %s: %s", from, to, r.why)
				}
			}
		}
		if !held {
			t.Errorf("the rule for %v holds no package; its paths have moved", r.from)
		}
	}
}

func TestWireImportsTheStandardLibraryAlone(t *testing.T) {
	for _, p := range ours(t) {
		if !below(p.ImportPath, module+"core/wire") {
			continue
		}
		for _, imp := range p.Imports {
			if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") || imp == "net/http" {
				t.Errorf("core/wire imports %s", imp)
			}
		}
	}
}

func TestMainsAreOfCmdAndToolsOnly(t *testing.T) {
	for _, p := range ours(t) {
		if from := strings.TrimPrefix(p.ImportPath, module); below(from, "cmd") && len(p.GoFiles) > 2 {
			t.Errorf("%s has %d files; a main is one line and its dependencies", from, len(p.GoFiles))
		}
	}
}

func TestNoPackageIsCalledUtil(t *testing.T) {
	for _, p := range ours(t) {
		if b := filepath.Base(p.ImportPath); b == "util" || b == "utils" || b == "common" || b == "helpers" || b == "misc" {
			t.Errorf("%s: the name says nothing", p.ImportPath)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range ours(t) {
		files := append(append([]string(nil), p.GoFiles...), p.CgoFiles...)
		if len(files) == 0 {
			continue // tests only
		}
		if strings.Contains(p.ImportPath, "/plugins/proto/fleet/") {
			continue // generated; the protos carry the words
		}
		doc := ""
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				doc += f.Doc.Text()
			}
		}
		if len(strings.Fields(doc)) < 5 {
			t.Errorf("%s has no doc comment that says what it is for", p.ImportPath)
		}
	}
}

// lean are the binaries that are started with every call or for every session,
// or stay on somebody's machine: what they must not link, and why.
var lean = []struct {
	program string
	without []string
	why     string
}{
	{"cmd/fleet", []string{"fmt", "reflect", "net", "crypto", "encoding", "github.com"}, "fleet is the start of every call"},
	{"cmd/fleet-front", []string{"google.golang.org/grpc", "google.golang.org/protobuf", "golang.org/x/crypto/ssh", "github.com/hashicorp/go-plugin"}, "the front is started with nearly every call"},
	{"cmd/agentd", []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/hashicorp/go-plugin"}, "agentd stays in a machine's memory"},
	{"cmd/agentd-shim", []string{"google.golang.org/grpc", "google.golang.org/protobuf", "net/http", "crypto/tls"}, "a shim is started for every session and stays as long"},
	{"cmd/planed", []string{"google.golang.org/grpc", "github.com/hashicorp/go-plugin", module + "agentd"}, "the plane hosts no plugins"},
}

func TestSmallBinariesStayLean(t *testing.T) {
	for _, l := range lean {
		for _, goos := range []string{"linux", "darwin"} {
			cmd := exec.Command("go", "list", "-deps", module+l.program)
			cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("go list -deps %s: %v", l.program, err)
			}
			deps := strings.Fields(string(out))
			if len(deps) < 10 {
				t.Fatalf("%s links %d packages only; go list says %q", l.program, len(deps), out)
			}
			for _, d := range deps {
				if below(d, l.without...) {
					t.Errorf("%s for %s links %s: %s", l.program, goos, d, l.why)
				}
			}
		}
	}
}
