package cli

import "fleet.example/fleet/core/command"

var topics = []command.Topic{
	{Name: "exit-codes", Summary: "what an exit code means", Text: `
  0  all is well
  1  failure
  2  usage: the command line or configuration is wrong
  3  some of many failed
  4  a person must log in or approve
  5  not found
  6  host key unknown or changed
  7  unreachable
  8  not yet: waited out, or deferred
  9  refused or blocked
130  interrupted

fleet exec, shell and attach return the remote command's own code, 128 plus the
number of the signal that ended it, and 255 for failures of their own, as ssh
does; a wrong command line is 2 there, too. With --json or --jsonl an error is
one fleet.error/v1 document on standard error, which carries the code too.`},
	{Name: "selectors", Summary: "how MACHINE and many machines are named", Text: `
MACHINE is an exact id, else an exact name, else a unique prefix of either. A
word that means several machines is a usage error that names them. What cannot
be undone (delete, uninstall, host unlink) takes no prefix. Commands that reach
a machine look among the links first, then ask the plane. A prefix never stands
for a machine while another is called exactly that, so the plane is asked for
every prefix; a whole name or id of a link needs no plane.

Instead of MACHINE, where the usage says MACHINE|SELECTOR, -l k=v,k2!=v2 selects
by labels; --presence, --lifecycle, --blocker and --agent-version by state. All
that are given must fit; k!=v takes machines without the label too. --all takes
every machine. The plane is asked once, before anything begins. Commands for
which many make no sense (shell, attach, kill, show, rename) do not take these
flags.

  --yes           confirms what is selected, where it cannot be undone
  --dry-run       names the machines, does nothing, connects to none
  --parallel N    works on N at once (16)
  --max-failed N  begins no more after N failures; what runs then ends by
                  itself, and the others count as not begun

Each machine has one result, and one that fails hides no other. The exit code is
3 when some failed, 0 when none was selected. Under --jsonl each result is a
line, when it is there: {"machine","name","ok","exit","error"}, with "document",
what --json prints for one machine. The last line sums up:
{"schema":"fleet.summary/v1","ok":N,"failed":N}, with "not_begun" where that is
not 0. --json is one fleet.results/v1 with the same, ordered by name.

exec and logs show lines as they come, each after its machine's name; under
--jsonl as {"machine","name","stream","data"}, a line with its line break or a
part of a long one, with "data_b64" where it is no UTF-8. In exec's results,
"exit" is the remote command's own exit code, or 255 with an "error" where fleet
could not do its part.

An interrupt goes to exec's commands; everywhere else it ends what is under way.`},
	{Name: "environment", Summary: "configuration, variables and files", Text: `
A value comes from a flag, else from its variable, else from
$XDG_CONFIG_HOME/fleet/config.toml, else from /etc/fleet/config.toml. Keys are
plane, token_file, no_input, no_mux, updates, verbose, parallel. Unknown keys
are errors.

FLEET_PLANE         the plane's URL
FLEET_TOKEN_FILE    private file with an automation token
FLEET_NO_INPUT      never ask
FLEET_NO_MUX        share no SSH connection with other commands
FLEET_UPDATES       when machines that run something older are updated:
                    on-connect, notice or never (fleet help update)
FLEET_VERBOSE       say more
FLEET_PLUGIN_DIR    looked at first for plugins
FLEET_ARTIFACT_DIR  looked at first for artifacts
FLEET_SIGN_KEY      the key that signs artifacts
NO_COLOR, TERM=dumb no colour

State (sessions, pins, links) is in $XDG_STATE_HOME/fleet, sockets are in
$XDG_RUNTIME_DIR/fleet, /run/user/UID/fleet or /tmp/fleet-UID. What ssh -G said
of your configuration is kept in $XDG_CACHE_HOME/fleet, and may be removed.`},
}
