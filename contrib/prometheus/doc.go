// Package prometheus holds alert rules for a plane's metrics (fleet.rules.yml),
// for a Prometheus server's rule_files. Its tests hold them against promtool and
// against the names that a plane exports.
package prometheus
