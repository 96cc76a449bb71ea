package sshconn

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
)

func signers(t *testing.T) (ed, rsa2048 ssh.Signer) {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if ed, err = ssh.NewSignerFromKey(priv); err == nil {
		rsa2048, err = ssh.NewSignerFromKey(big)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ed, rsa2048
}

// honourAll is what a connection makes of a configuration without pins.
func honourAll(conf *ssh.ClientConfig, c *sshconfig.Config) error {
	err := honour(conf, c)
	if err == nil {
		conf.HostKeyAlgorithms, err = (&Peer{Config: c}).HostKeyAlgorithms()
	}
	return err
}

func TestConfiguredAlgorithmsAreCutDownInOrder(t *testing.T) {
	conf := &ssh.ClientConfig{}
	c := &sshconfig.Config{HostName: "box", Port: 22, User: "u", RekeyLimit: 1 << 20,
		KexAlgorithms: []string{"sntrup761x25519-sha512@openssh.com", "diffie-hellman-group16-sha512", "curve25519-sha256@libssh.org", "diffie-hellman-group1-sha1"},
		Ciphers:       []string{"aes256-ctr", "nothing@example", "aes128-cbc", "aes128-gcm@openssh.com"},
		MACs:          []string{"umac-64@openssh.com", "hmac-sha2-512"},
		// A host key algorithm that is nowhere does no harm beside one that is.
		HostKeyAlgorithms: []string{"sk-ssh-moon", ssh.KeyAlgoRSASHA256, ssh.KeyAlgoED25519}}
	if err := honourAll(conf, c); err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string][2][]string{
		"kex":      {conf.KeyExchanges, {"diffie-hellman-group16-sha512", "curve25519-sha256@libssh.org", "diffie-hellman-group1-sha1"}},
		"ciphers":  {conf.Ciphers, {"aes256-ctr", "aes128-cbc", "aes128-gcm@openssh.com"}},
		"macs":     {conf.MACs, {"hmac-sha2-512"}},
		"host key": {conf.HostKeyAlgorithms, {ssh.KeyAlgoRSASHA256, ssh.KeyAlgoED25519}},
	} {
		if !slices.Equal(l[0], l[1]) {
			t.Errorf("%s: %q, want %q", name, l[0], l[1])
		}
	}
	if conf.RekeyThreshold != 1<<20 {
		t.Error(conf.RekeyThreshold)
	}
}

func TestNothingConfiguredOffersLargeGroupsAndNothingWeak(t *testing.T) {
	conf := &ssh.ClientConfig{}
	if err := honourAll(conf, &sshconfig.Config{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"curve25519-sha256", "diffie-hellman-group16-sha512", "diffie-hellman-group-exchange-sha256"} {
		if !slices.Contains(conf.KeyExchanges, want) {
			t.Errorf("%s is not offered", want)
		}
	}
	weak := ssh.InsecureAlgorithms()
	for _, a := range slices.Concat(conf.KeyExchanges, conf.Ciphers, conf.MACs, conf.HostKeyAlgorithms) {
		if slices.Contains(slices.Concat(weak.KeyExchanges, weak.Ciphers, weak.MACs, weak.HostKeys), a) {
			t.Errorf("%s is offered", a)
		}
	}
}

func TestAListOfNothingKnownIsRefusedInWords(t *testing.T) {
	for keyword, c := range map[string]*sshconfig.Config{
		"KexAlgorithms":     {KexAlgorithms: []string{"x"}},
		"Ciphers":           {Ciphers: []string{"x"}},
		"MACs":              {MACs: []string{"x"}},
		"HostKeyAlgorithms": {HostKeyAlgorithms: []string{"x"}},
	} {
		err := honourAll(&ssh.ClientConfig{}, c)
		if f := fault.Of(err); f == nil || f.Code != "algorithms" || !strings.Contains(f.Msg, keyword) || f.Hint == "" {
			t.Errorf("%s: %v", keyword, err)
		}
	}
}

func TestPinsDecideHostKeyAlgorithms(t *testing.T) { // R2
	here := ssh.SupportedAlgorithms().HostKeys
	pins := []hostkey.Pin{{Type: ssh.KeyAlgoRSA}}
	for what, c := range map[string]struct{ asked, want []string }{
		"nothing configured":  {nil, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}},
		"the pinned type":     {[]string{ssh.KeyAlgoED25519, ssh.KeyAlgoRSASHA256}, []string{ssh.KeyAlgoRSASHA256}},
		"certificates only":   {[]string{ssh.CertAlgoED25519v01, ssh.CertAlgoRSASHA256v01}, []string{ssh.CertAlgoRSASHA256v01}},
		"another type":        {[]string{ssh.KeyAlgoED25519}, nil},
		"order as configured": {[]string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}, []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}},
	} {
		got, err := hostKeyAlgorithms(&sshconfig.Config{HostKeyAlgorithms: c.asked}, pins, nil, here)
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
		if f := fault.Of(err); f != nil && f.Exit != fault.HostKey {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestKeysAreOfferedAsConfigured(t *testing.T) {
	ed, big := signers(t)
	for what, c := range map[string]struct {
		key   ssh.Signer
		asked []string
		bits  int
		algos []string // of the signer, for RSA
		taken bool
	}{
		"RSA signs with SHA-2 alone":          {big, nil, 0, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}, true},
		"RSA in the order configured":         {big, []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}, 0, []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}, true},
		"SHA-1 alone is nothing":              {big, []string{ssh.KeyAlgoRSA}, 0, nil, false},
		"RSA is not in the list":              {big, []string{ssh.KeyAlgoED25519}, 0, nil, false},
		"RSA is too small":                    {big, nil, 3072, nil, false},
		"Ed25519 has no such size":            {ed, nil, 3072, nil, true},
		"Ed25519 is in the list":              {ed, []string{ssh.KeyAlgoED25519}, 0, nil, true},
		"Ed25519 is not in the list":          {ed, []string{ssh.KeyAlgoRSASHA512}, 0, nil, false},
		"a certificate's name is not a key's": {ed, []string{ssh.CertAlgoED25519v01}, 0, nil, false},
	} {
		s, why := acceptable(c.key, &sshconfig.Config{PubkeyAcceptedAlgorithms: c.asked, RequiredRSASize: c.bits})
		if (s != nil) != c.taken || (why == "") != c.taken {
			t.Errorf("%s: %v, %q", what, s, why)
		}
		if m, ok := s.(ssh.MultiAlgorithmSigner); c.algos != nil && (!ok || !slices.Equal(m.Algorithms(), c.algos)) {
			t.Errorf("%s: %v", what, s)
		}
	}
}

func TestOnlyPublicKeysLogIn(t *testing.T) {
	for what, c := range map[string]struct {
		conf sshconfig.Config
		ok   bool
	}{
		"nothing configured": {sshconfig.Config{}, true},
		"among others":       {sshconfig.Config{PreferredAuthentications: []string{"password", "publickey"}}, true},
		"not named":          {sshconfig.Config{PreferredAuthentications: []string{"password"}}, false},
		"switched off":       {sshconfig.Config{NoPubkeyAuthentication: true}, false},
	} {
		if err := byKey(&c.conf); (err == nil) != c.ok || err != nil && fault.Of(err).Hint == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAHeartbeatIsNeverSlowerThanPromised(t *testing.T) { // R32
	for what, c := range map[string]struct {
		interval        time.Duration
		count           int
		every, patience time.Duration
	}{
		"not configured":  {0, 3, 30 * time.Second, 15 * time.Second},
		"quicker":         {5 * time.Second, 2, 5 * time.Second, 10 * time.Second},
		"quicker, longer": {10 * time.Second, 3, 10 * time.Second, 15 * time.Second},
		"slower":          {time.Minute, 3, 30 * time.Second, 15 * time.Second},
		"never gives up":  {5 * time.Second, 0, 5 * time.Second, 15 * time.Second},
		"absurd count":    {time.Second, 1 << 40, time.Second, 15 * time.Second},
	} {
		every, patience := heartbeat(&sshconfig.Config{ServerAliveInterval: c.interval, ServerAliveCountMax: c.count})
		if every != c.every || patience != c.patience {
			t.Errorf("%s: %s, %s", what, every, patience)
		}
	}
}

func TestAuthoritiesSignAsAllowed(t *testing.T) {
	cert := func(format string) ssh.PublicKey { return &ssh.Certificate{Signature: &ssh.Signature{Format: format}} }
	for what, c := range map[string]struct {
		asked  []string
		format string
		ok     bool
	}{
		"SHA-2":            {nil, ssh.KeyAlgoRSASHA256, true},
		"SHA-1":            {nil, ssh.KeyAlgoRSA, false},
		"SHA-1, asked for": {[]string{ssh.KeyAlgoRSA}, ssh.KeyAlgoRSA, true},
		"not in the list":  {[]string{ssh.KeyAlgoED25519}, ssh.KeyAlgoRSASHA256, false},
	} {
		if ok := signedAsAllowed(&sshconfig.Config{CASignatureAlgorithms: c.asked}, cert(c.format)); ok != c.ok {
			t.Errorf("%s: %v", what, ok)
		}
	}
	if ed, _ := signers(t); !signedAsAllowed(&sshconfig.Config{}, ed.PublicKey()) {
		t.Error("a plain key counts as a certificate")
	}
}
