package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleet.example/fleet/core/wire"
)

func TestEveryFurtherRepositoryHasItsPlace(t *testing.T) {
	repo := func(url, branch, dir string) wire.WorkspaceRepo {
		return wire.WorkspaceRepo{URL: url, Branch: branch, Dir: dir}
	}
	for _, c := range []struct {
		words  []string
		branch string
		want   []wire.WorkspaceRepo
	}{
		{nil, "", nil},
		{[]string{"https://git.example/a.git"}, "", []wire.WorkspaceRepo{repo("https://git.example/a.git", "", "")}},
		{[]string{"git@git.example:team/a.git", "git@git.example:b", "/srv/c/.git", "ssh://git.example/d/"}, "task",
			[]wire.WorkspaceRepo{repo("git@git.example:team/a.git", "task", ""), repo("git@git.example:b", "task", "b"), repo("/srv/c/.git", "task", "c"), repo("ssh://git.example/d/", "task", "d")}},
		{[]string{"u/a#one", "u/a#two/x", "u/b#three", "u/b"}, "main",
			[]wire.WorkspaceRepo{repo("u/a", "one", ""), repo("u/a", "two/x", "a-two-x"), repo("u/b", "three", "b-three"), repo("u/b", "main", "b-main")}},
	} {
		got, err := workspaceRepos(c.words, c.branch)
		if err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%q: %+v, %v", c.words, got, err)
		}
	}
	for _, words := range [][]string{{"u/a", "u/b", "v/b"}, {"#x"}, {""}} {
		if got, err := workspaceRepos(words, ""); err == nil {
			t.Errorf("%q: %+v", words, got)
		}
	}
	if _, err := workspaceRepos(nil, "x"); err == nil {
		t.Error("a branch of nothing")
	}
}
