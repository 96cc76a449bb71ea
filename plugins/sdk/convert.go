package sdk

import (
	"io/fs"
	"math"
	"strings"
	"time"

	hostv1 "fleet.example/fleet/plugins/proto/fleet/host/v1"
	probev1 "fleet.example/fleet/plugins/proto/fleet/probe/v1"
	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// table is a small bijection between a word of this package and an enum. The
// enum's zero value stands for every word that is not in it.
type table[W comparable, E comparable] []struct {
	word W
	enum E
}

func (t table[W, E]) toEnum(w W) (e E) {
	for _, r := range t {
		if r.word == w {
			return r.enum
		}
	}
	return e
}

func (t table[W, E]) toWord(e E, otherwise W) W {
	for _, r := range t {
		if r.enum == e {
			return r.word
		}
	}
	return otherwise
}

var privileges = table[Privilege, hostv1.Privilege]{
	{PrivilegeNone, hostv1.Privilege_PRIVILEGE_NONE},
	{PrivilegeSudo, hostv1.Privilege_PRIVILEGE_SUDO},
	{PrivilegeRoot, hostv1.Privilege_PRIVILEGE_ROOT},
}

var phases = table[Phase, hostv1.Phase]{
	{PhaseUnconfirmed, hostv1.Phase_PHASE_UNCONFIRMED},
	{PhaseExamine, hostv1.Phase_PHASE_EXAMINE},
	{PhaseChange, hostv1.Phase_PHASE_CHANGE},
	{PhaseResident, hostv1.Phase_PHASE_RESIDENT},
}

var scopes = table[Scope, servicev1.Scope]{
	{ScopeUser, servicev1.Scope_SCOPE_USER},
	{ScopeSystem, servicev1.Scope_SCOPE_SYSTEM},
}

var states = table[State, servicev1.State]{
	{StateRunning, servicev1.State_STATE_RUNNING},
	{StateStarting, servicev1.State_STATE_STARTING},
	{StateStopped, servicev1.State_STATE_STOPPED},
	{StateFailed, servicev1.State_STATE_FAILED},
	{StateAbsent, servicev1.State_STATE_ABSENT},
}

var severities = table[Severity, probev1.Severity]{
	{SeverityBlock, probev1.Severity_SEVERITY_BLOCK},
	{SeverityWarn, probev1.Severity_SEVERITY_WARN},
}

var families = table[string, transportv1.AddressFamily]{
	{"inet", transportv1.AddressFamily_ADDRESS_FAMILY_INET},
	{"inet6", transportv1.AddressFamily_ADDRESS_FAMILY_INET6},
}

func factsToWire(f Facts) *hostv1.Facts {
	p := &hostv1.Facts{
		Os: f.OS, Arch: f.Arch, OsRelease: f.OSRelease, Init: f.Init,
		Uid: f.UID, User: f.User, Home: f.Home,
		Privilege: privileges.toEnum(f.Privilege), Phase: phases.toEnum(f.Phase),
		DataDir: f.DataDir, CredentialWriteError: f.CredentialWriteError,
		Scope: string(f.Scope), ServiceManager: f.ServiceManager,
	}
	if f.ClockOffset != nil {
		ms := f.ClockOffset.Milliseconds()
		p.ClockOffsetMs = &ms
	}
	return p
}

func factsFromWire(p *hostv1.Facts) Facts {
	f := Facts{
		OS: p.GetOs(), Arch: p.GetArch(), OSRelease: p.GetOsRelease(), Init: p.GetInit(),
		UID: p.GetUid(), User: p.GetUser(), Home: p.GetHome(),
		Privilege: privileges.toWord(p.GetPrivilege(), PrivilegeNone),
		Phase:     phases.toWord(p.GetPhase(), PhaseUnconfirmed),
		DataDir:   p.GetDataDir(), CredentialWriteError: p.GetCredentialWriteError(),
		Scope: Scope(p.GetScope()), ServiceManager: p.GetServiceManager(),
	}
	if p.GetClockOffsetMs() != 0 || p != nil && p.ClockOffsetMs != nil {
		d := clampMillis(p.GetClockOffsetMs())
		f.ClockOffset = &d
	}
	return f
}

// clampMillis keeps a number of milliseconds that is no duration from wrapping.
func clampMillis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// millis rounds up, so that a short time-out never becomes none.
func millis(d time.Duration) uint32 {
	return uint32(min(max((d+time.Millisecond-1)/time.Millisecond, 0), 1<<31))
}

func specToWire(s Spec) *servicev1.Spec {
	return &servicev1.Spec{
		Name: s.Name, Scope: scopes.toEnum(s.Scope), User: s.User, Argv: s.Argv,
		DataDir: s.DataDir, RuntimeDir: s.RuntimeDir, LogFile: s.LogFile, Latch: s.Latch,
		StartTimeoutS: seconds(s.StartTimeout), StopTimeoutS: seconds(s.StopTimeout),
	}
}

func specFromWire(p *servicev1.Spec) Spec {
	return Spec{
		Name: p.GetName(), Scope: scopes.toWord(p.GetScope(), ""), User: p.GetUser(), Argv: p.GetArgv(),
		DataDir: p.GetDataDir(), RuntimeDir: p.GetRuntimeDir(), LogFile: p.GetLogFile(), Latch: p.GetLatch(),
		StartTimeout: time.Duration(p.GetStartTimeoutS()) * time.Second,
		StopTimeout:  time.Duration(p.GetStopTimeoutS()) * time.Second,
	}
}

// seconds rounds up, so that a short time-out never becomes none.
func seconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Second-1)/time.Second, 0), math.MaxUint32))
}

func detectionToWire(d Detection) *servicev1.DetectResponse {
	p := &servicev1.DetectResponse{
		Score: uint32(min(max(d.Score, 0), 100)), Reason: d.Reason, SparesSessions: d.SparesSessions,
		LatchAware: d.LatchAware, Logs: d.Logs, Linger: d.Linger, Version: d.Version,
	}
	for _, s := range d.Scopes {
		p.Scopes = append(p.Scopes, scopes.toEnum(s))
	}
	return p
}

func detectionFromWire(p *servicev1.DetectResponse) Detection {
	d := Detection{
		Score: int(min(p.GetScore(), 100)), Reason: p.GetReason(), SparesSessions: p.GetSparesSessions(),
		LatchAware: p.GetLatchAware(), Logs: p.GetLogs(), Linger: p.GetLinger(), Version: p.GetVersion(),
	}
	for _, s := range p.GetScopes() {
		if w := scopes.toWord(s, ""); w != "" {
			d.Scopes = append(d.Scopes, w)
		}
	}
	return d
}

func renderedToWire(r Rendered) *servicev1.RenderResponse {
	p := &servicev1.RenderResponse{
		Unit: r.Unit, Caveats: r.Caveats, StartArgv: r.StartArgv, StopArgv: r.StopArgv, RestartArgv: r.RestartArgv,
	}
	for _, f := range r.Files {
		p.Files = append(p.Files, &servicev1.File{
			Path: f.Path, Mode: ModeToWire(f.Mode), Owner: f.Owner, Content: f.Content,
		})
	}
	return p
}

func renderedFromWire(p *servicev1.RenderResponse) Rendered {
	r := Rendered{
		Unit: p.GetUnit(), Caveats: p.GetCaveats(),
		StartArgv: p.GetStartArgv(), StopArgv: p.GetStopArgv(), RestartArgv: p.GetRestartArgv(),
	}
	for _, f := range p.GetFiles() {
		r.Files = append(r.Files, File{
			Path: f.GetPath(), Mode: modeFromWire(f.GetMode()), Owner: f.GetOwner(), Content: f.GetContent(),
		})
	}
	return r
}

func statusToWire(s Status) *servicev1.StatusResponse {
	p := &servicev1.StatusResponse{
		State: states.toEnum(s.State), Pid: uint32(max(s.PID, 0)), AtBoot: s.AtBoot,
		Detail: strings.ToValidUTF8(s.Detail, "\uFFFD"), // a manager's own words may be any bytes, and protobuf's are not
	}
	if !s.Since.IsZero() {
		p.SinceS = s.Since.Unix()
	}
	if s.LastExit != nil {
		e := int32(*s.LastExit)
		p.LastExit = &e
	}
	return p
}

func statusFromWire(p *servicev1.StatusResponse) Status {
	s := Status{
		State: states.toWord(p.GetState(), StateUnknown), PID: int(p.GetPid()), AtBoot: p.GetAtBoot(), Detail: p.GetDetail(),
	}
	if p.GetSinceS() != 0 {
		s.Since = time.Unix(p.GetSinceS(), 0).UTC()
	}
	if p.LastExit != nil {
		e := int(p.GetLastExit())
		s.LastExit = &e
	}
	return s
}

func hopToWire(h Hop) *transportv1.Hop {
	return &transportv1.Hop{Id: h.ID, Host: h.Host, Port: uint32(max(h.Port, 0)), User: h.User,
		KeyExchanges: h.KeyExchanges, Ciphers: h.Ciphers, Macs: h.MACs, ConnectTimeoutMs: millis(h.ConnectTimeout)}
}

func hopFromWire(p *transportv1.Hop) Hop {
	return Hop{ID: p.GetId(), Host: p.GetHost(), Port: int(p.GetPort()), User: p.GetUser(),
		KeyExchanges: p.GetKeyExchanges(), Ciphers: p.GetCiphers(), MACs: p.GetMacs(),
		ConnectTimeout: clampMillis(int64(p.GetConnectTimeoutMs()))}
}

func hopsToWire(hs []Hop) (ps []*transportv1.Hop) {
	for _, h := range hs {
		ps = append(ps, hopToWire(h))
	}
	return ps
}

func hopsFromWire(ps []*transportv1.Hop) (hs []Hop) {
	for _, p := range ps {
		hs = append(hs, hopFromWire(p))
	}
	return hs
}

// ModeToWire gives the POSIX bits of a mode.
func ModeToWire(m fs.FileMode) uint32 {
	w := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		w |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		w |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		w |= 0o1000
	}
	return w
}

func modeFromWire(w uint32) fs.FileMode {
	m := fs.FileMode(w & 0o777)
	if w&0o4000 != 0 {
		m |= fs.ModeSetuid
	}
	if w&0o2000 != 0 {
		m |= fs.ModeSetgid
	}
	if w&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}
