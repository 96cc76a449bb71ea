# fleet: build, demo, test. `make help` lists the targets.

GO        ?= go
# Versions are compared when a machine is connected to, so that one without a
# tag before it counts its commits, as git describe does.
VERSION   ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || \
	echo 0.1.0-$$(git rev-list --count HEAD 2>/dev/null || echo 0)-g$$(git rev-parse --short HEAD 2>/dev/null || echo 0))
BIN       := bin
CROSS     := .cache/cross
PLATFORMS := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
SIGN_KEY  := $(or $(FLEET_SIGN_KEY),.keys/artifact-sign)

export CGO_ENABLED = 0
LDFLAGS   = -s -w -buildid= -X main.version=$(VERSION)
# The command library's generator of manual pages costs every start a
# millisecond of init.
TAGS     := urfave_cli_no_docs
COMMA    := ,
# $(call BUILD,MORE) builds with more tags than TAGS.
BUILD     = $(GO) build -tags $(TAGS)$(1) -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
ON_MACHINE := agentd agentd-shim fleet-plugins

.PHONY: help build planed-pkcs11 artifacts demo test e2e lint bench fuzz completions clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: $(SIGN_KEY) ## build the programs for this machine into bin/
	@mkdir -p $(BIN) .cache/new
	$(BUILD) -o .cache/new/ ./cmd/fleet ./cmd/fleet-front ./cmd/planed ./cmd/fleet-plugins
	$(GO) build -tags $(TAGS) -trimpath -buildvcs=false -ldflags '$(LDFLAGS) -X "main.artifactSigner=$(shell cut -d" " -f1,2 $(SIGN_KEY).pub 2>/dev/null)"' -o .cache/new/ ./cmd/fleet-host
	@mv -f .cache/new/fleet-* .cache/new/planed $(BIN)/
	@mv -f .cache/new/fleet $(BIN)/
	$(BIN)/fleet-plugins lock $(BIN)

planed-pkcs11: ## build a planed that opens keys in PKCS #11 tokens; needs a C compiler
	@mkdir -p $(BIN)
	CGO_ENABLED=1 $(call BUILD,$(COMMA)pkcs11) -o $(BIN)/planed-pkcs11 ./cmd/planed

# The key that signs artifacts where FLEET_SIGN_KEY names no other.
.keys/artifact-sign:
	@mkdir -p -m 700 .keys
	ssh-keygen -q -t ed25519 -N '' -C fleet-artifacts -f $@

artifacts: build $(PLATFORMS:%=artifact-%) ## build and sign what is installed on machines

artifact-%: build
	@mkdir -p $(CROSS)/$*
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(call BUILD,$(COMMA)onmachine) -o $(CROSS)/$*/ $(ON_MACHINE:%=./cmd/%)
	$(BIN)/fleet-host artifact build $(CROSS)/$* --os $(word 1,$(subst -, ,$*)) --arch $(word 2,$(subst -, ,$*)) \
		--as $(VERSION) --sign-key $(SIGN_KEY) --out $(BIN)/artifacts

demo: artifact-linux-$(shell $(GO) env GOARCH) ## run the main job on a host of its own, in under two minutes
	contrib/demo/demo.sh

test: ## every test; those that need the lab say so where it cannot run
	contrib/test.sh

e2e: artifact-linux-$(shell $(GO) env GOARCH) ## the end-to-end tests alone
	$(GO) test -count=1 -timeout 60m ./contrib/e2e/...

lint: ## formatting, vet, staticcheck, generated code, scripts
	contrib/lint.sh

bench: build ## the figures: sizes, start-up, memory, checks, installs
	contrib/bench/run.sh

fuzz: ## every fuzz test for FUZZTIME (10 s) each
	contrib/fuzz.sh $(or $(FUZZTIME),10s)

clean: ## remove what was built
	rm -rf $(BIN) $(CROSS)
