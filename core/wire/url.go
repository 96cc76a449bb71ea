package wire

import (
	"errors"
	"net/url"
	"strings"
)

var errPlaneURL = errors.New("a plane's URL is https://HOST or https://HOST:PORT, without a path")

// PlaneURL returns the one spelling of a plane's URL that is compared and
// signed (R37): scheme, lower-case host, the port unless it is 443, and
// nothing after it.
func PlaneURL(s string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Opaque != "" ||
		(u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", errPlaneURL
	}
	host := strings.ToLower(u.Hostname())
	if strings.ContainsAny(host, "%\n\r\t \"\\<>") {
		return "", errPlaneURL
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	switch p := u.Port(); {
	case p == "" && strings.HasSuffix(u.Host, ":"), p == "443":
	case p != "":
		host += ":" + p
	}
	return "https://" + host, nil
}
