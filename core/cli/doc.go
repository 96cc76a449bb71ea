// Package cli is fleet's front: the commands that people type. It links
// neither SSH nor plugins, so that it starts in a few milliseconds; what needs
// them is done by the helper that it starts. It knows the agent's API and the
// plane's, and neither's inside.
package cli
