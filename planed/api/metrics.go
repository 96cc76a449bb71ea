package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

// metrics counts. No label names a machine, a person or an address.
type metrics struct {
	registry    *prometheus.Registry
	checks      [identity.Barred + 1]prometheus.Counter // by standing
	checkFailed prometheus.Counter
	staged      prometheus.Counter
	confirmed   prometheus.Counter
	shed        prometheus.Counter
	unknown     prometheus.Counter
	requests    *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	ahead       prometheus.Observer // skew of machines whose clock is ahead
	behind      prometheus.Observer
	gateRefused prometheus.Counter
	// Uses of the gate token that is to be accepted no more.
	retiringMachine, retiringUnknown prometheus.Counter

	rotations    *steps // nil: nothing rotates here
	certificates struct{ issued, refused prometheus.Counter }
}

// codes are the vocabulary of refusals, so that each has its counter from the
// start: a first refusal is a rise, and no new series.
var codes = []string{wire.CodeUnauthorized, wire.CodeBehind, wire.CodeRevoked, wire.CodeBusy, wire.CodeBadRequest, wire.CodeTooLarge,
	wire.CodeNotFound, wire.CodeForbidden, wire.CodeConflict, wire.CodeDeleted, wire.CodeInternal, wire.CodeTouchRequired}

func newMetrics(st store.Store, p machine.Policy, now func() time.Time) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	checks := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_checks_total", Help: "Checks, by what the presented credential was."}, []string{"standing"})
	for s, name := range map[identity.Standing]string{
		identity.Unknown: "unauthorized", identity.Current: "current", identity.Next: "next",
		identity.Behind: "behind", identity.Revoked: "revoked", identity.Barred: "barred",
	} {
		m.checks[s] = checks.WithLabelValues(name)
	}
	m.checkFailed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fleet_checks_failed_total", Help: "Checks that could not be judged or recorded."})
	rotations := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_rotations_total", Help: "Rotations: next generations that were staged, and those that a first use confirmed."}, []string{"step"})
	m.staged, m.confirmed = rotations.WithLabelValues("staged"), rotations.WithLabelValues("confirmed")
	certificates := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_certificates_total", Help: "Requests of machines for certificates, by what became of them."}, []string{"result"})
	m.certificates.issued, m.certificates.refused = certificates.WithLabelValues("issued"), certificates.WithLabelValues("refused")
	m.shed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fleet_requests_shed_total", Help: "Requests refused with 503 because too many were under way."})
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_requests_total", Help: "Requests, by route and status."}, []string{"route", "status"})
	m.gateRefused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fleet_gate_refused_total", Help: "Requests that were turned away at the gate."})
	retiring := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_gate_retiring_uses_total", Help: "Uses of the gate token that a rotation retires, by machines that proved who they are and by unknown callers."}, []string{"caller"})
	m.retiringMachine, m.retiringUnknown = retiring.WithLabelValues("machine"), retiring.WithLabelValues("unknown")
	m.unknown = m.requests.WithLabelValues("unknown", "404")
	m.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleet_refusals_total", Help: "Requests that were refused, by the code of the answer."}, []string{"code"})
	for _, code := range codes {
		m.refusals.WithLabelValues(code)
	}
	skew := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "fleet_clock_skew_seconds", Help: "By how much machines' clocks differ from the plane's, at each accepted check.",
		Buckets: []float64{0.1, 1, 10, 60, 600, 3600, 86400, 30 * 86400, 365 * 86400}}, []string{"way"})
	m.ahead, m.behind = skew.WithLabelValues("ahead"), skew.WithLabelValues("behind")
	gauge := func(name, help string, f func(store.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return f(st.Stats()) })
	}
	m.registry.MustRegister(checks, m.checkFailed, rotations, certificates, &pending{st, p}, &expiries{st, now}, m.shed, m.requests, m.refusals, skew, m.gateRefused, retiring,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("fleet_machines", "Machines that are not deleted.", func(s store.Stats) float64 { return float64(s.Machines) }),
		gauge("fleet_tombstones", "Deleted machines that are remembered.", func(s store.Stats) float64 { return float64(s.Tombstones) }),
		gauge("fleet_store_bytes", "Size of the store.", func(s store.Stats) float64 { return float64(s.SizeBytes) }),
		gauge("fleet_store_queue", "Operations that wait for a commit.", func(s store.Stats) float64 { return float64(s.Queued) }),
		gauge("fleet_store_write_error", "1 while the last write failed.", func(s store.Stats) float64 {
			if s.WriteError != "" {
				return 1
			}
			return 0
		}),
		gauge("fleet_store_flush_age_seconds", "Time since the times of last checks were written.", func(s store.Stats) float64 {
			if s.LastFlush.IsZero() {
				return 0
			}
			return now().Sub(s.LastFlush).Seconds()
		}),
	)
	return m
}

// pending collects the rotations that are under way, all states in one look.
type pending struct {
	store  store.Store
	policy machine.Policy
}

var pendingDesc = prometheus.NewDesc("fleet_rotations_pending",
	"Machines that were asked to rotate and have not (requested), that have a next generation which was never used (staged), and those of either that keep checking and get no further (stuck).",
	[]string{"state"}, nil)

func (*pending) Describe(ch chan<- *prometheus.Desc) { ch <- pendingDesc }

func (c *pending) Collect(ch chan<- prometheus.Metric) {
	n := c.store.Rotations(c.policy)
	for state, count := range map[string]int{"requested": n.Requested, "staged": n.Staged, "stuck": n.Stuck} {
		ch <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(count), state)
	}
}

// rotates adds what there is to know of one engine. Engines are added before
// anybody collects.
func (m *metrics) rotates(e *rotation.Engine, now func() time.Time) {
	if m.rotations == nil {
		m.rotations = &steps{now: now}
		m.registry.MustRegister(m.rotations)
	}
	m.rotations.engines = append(m.rotations.engines, e)
}

// steps collects where the engines' rotations are.
type steps struct {
	engines []*rotation.Engine
	now     func() time.Time
}

var (
	stepDesc = prometheus.NewDesc("fleet_rotation_step",
		"1 for the step in which the rotation of a kind of material is, 0 for the others; idle when none is under way.", []string{"kind", "step"}, nil)
	stepAgeDesc = prometheus.NewDesc("fleet_rotation_step_age_seconds",
		"Time since the rotation's step began; 0 when none is under way.", []string{"kind"}, nil)
	ageDesc = prometheus.NewDesc("fleet_rotation_age_seconds",
		"Time since the rotation began; 0 when none is under way.", []string{"kind"}, nil)
	stragglersDesc = prometheus.NewDesc("fleet_rotation_stragglers",
		"Machines that have not presented the version that they are to hold and were not left; 0 when no rotation is under way.", []string{"kind"}, nil)
	versionDesc = prometheus.NewDesc("fleet_rotation_version",
		"The version that machines are to hold.", []string{"kind"}, nil)
)

func (*steps) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{stepDesc, stepAgeDesc, ageDesc, stragglersDesc, versionDesc} {
		ch <- d
	}
}

func (c *steps) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.engines {
		c.collect(ch, e)
	}
}

func (c *steps) collect(ch chan<- prometheus.Metric, e *rotation.Engine) {
	kind := e.Kind
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{kind}, labels...)...)
	}
	s, err := e.Store.RotationState(context.Background(), kind)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(stepDesc, err)
		return
	}
	in, stepAge, age, behind := wire.RotationIdle, 0.0, 0.0, 0
	if s.Running() {
		in = s.Run.Step
		stepAge, age = c.now().Sub(s.Run.StepAt).Seconds(), c.now().Sub(s.Run.StartedAt).Seconds()
		behind = e.Store.Tally(kind, s.Moved, s.Left).Behind
	}
	for _, step := range []string{wire.RotationIdle, wire.StepWiden, wire.StepRoll, wire.StepProve, wire.StepNarrow} {
		v := 0.0
		if step == in {
			v = 1
		}
		gauge(stepDesc, v, step)
	}
	gauge(stepAgeDesc, stepAge)
	gauge(ageDesc, age)
	gauge(stragglersDesc, float64(behind))
	gauge(versionDesc, float64(s.Target()))
}

// expiries collects how long the certificates of machines are still valid. Of a
// fleet that renews none has less than about half of its life left.
type expiries struct {
	store store.Store
	now   func() time.Time
}

var (
	expiriesDesc = prometheus.NewDesc("fleet_machine_certificate_remaining_seconds",
		"Machines on the rung of mutual TLS, by how long their latest certificate is still valid; 0 when it has expired.", nil, nil)
	expiryBounds = []time.Duration{0, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour,
		6 * time.Hour, 8 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour}
)

func (*expiries) Describe(ch chan<- *prometheus.Desc) { ch <- expiriesDesc }

func (c *expiries) Collect(ch chan<- prometheus.Metric) {
	n := c.store.Certificates(c.now(), expiryBounds)
	buckets := make(map[float64]uint64, len(expiryBounds))
	for i, b := range expiryBounds {
		buckets[b.Seconds()] = n.Within[i]
	}
	ch <- prometheus.MustNewConstHistogram(expiriesDesc, uint64(n.Machines), n.Left.Seconds(), buckets)
}

// routeCounters are a route's counters, the common one made beforehand.
type routeCounters struct {
	ok    prometheus.Counter
	vec   *prometheus.CounterVec
	route string
}

func (m *metrics) route(rt *Route) routeCounters {
	name := rt.Method + " " + rt.Path
	return routeCounters{m.requests.WithLabelValues(name, "200"), m.requests, name}
}

func (c routeCounters) refused(status int) prometheus.Counter {
	return c.vec.WithLabelValues(c.route, strconv.Itoa(status))
}

// skewed notes by how much a machine's clock differs from the plane's. A check
// that names no clock tells nothing.
func (m *metrics) skewed(machine, now time.Time) {
	if machine.IsZero() {
		return
	}
	if off := machine.Sub(now).Seconds(); off >= 0 {
		m.ahead.Observe(off)
	} else {
		m.behind.Observe(-off)
	}
}

// MetricsHandler serves /metrics and nothing else.
func (a *API) MetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return mux
}
