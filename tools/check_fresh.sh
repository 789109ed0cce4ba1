#!/bin/sh
# Tests a newcomer's first steps in a minimal Debian: clone, ./dev serve, the README's curl command, ./dev test.
#
#   tools/check_fresh.sh [--suite NAME] [--stages "serve test"] [--port N] [--test-data DIR]
#                        [--wait SECONDS] [--keep]
#
#   --suite NAME      the Debian release (bookworm, which is Debian 12)
#   --stages NAMES    which of setup, build, serve and test to run, in this order ("serve test")
#   --port N          the server's port, in the host's network (default: a free one)
#   --test-data DIR   mounted read-only as REPRISE_TEST_DATA; without it those tests are skipped
#   --wait SECONDS    time limit for setup, build and startup of ./dev serve together (900)
#   --keep            do not delete the system, and print its path
#
# Needs root, debootstrap, git and curl on the host. Package sources are those of the host: APT sources
# and Acquire settings, pip configuration, proxy variables and extra certificates. HEAD is cloned;
# uncommitted changes are not included.
# Exit code 0: every stage did what the README says.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
suite=bookworm
stages="serve test"
port=${REPRISE_PORT-}
test_data=
wait_s=900
keep=no
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
    exit "$1"
}
while [ $# -gt 0 ]; do
    case $1 in
    --suite | --stages | --port | --test-data | --wait)
        [ $# -ge 2 ] || usage 2
        case $1 in
        --suite) suite=$2 ;;
        --stages) stages=$2 ;;
        --port) port=$2 ;;
        --test-data) test_data=$(CDPATH='' cd -- "$2" && pwd) ;;
        --wait) wait_s=$2 ;;
        esac
        shift ;;
    --keep) keep=yes ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
    shift
done
for stage in $stages; do
    case $stage in setup | build | serve | test) ;; *) usage 2 >&2 ;; esac
done

say() { echo "check_fresh: $*"; }
die() {
    say "FAILED: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || die "needs root (debootstrap, chroot and mount)"
for program in debootstrap git curl setsid python3; do
    command -v $program >/dev/null 2>&1 || die "$program is not installed"
done
# shellcheck source=tools/bare_debian.sh
. "$root/tools/bare_debian.sh"
port=${port:-$(bare_free_port)}

base=$(mktemp -d "${TMPDIR:-/var/tmp}/check_fresh.XXXXXX")
system=$base/system
server=
cleanup() {
    code=$?
    trap - EXIT INT TERM HUP
    set +e
    if [ -n "$server" ]; then
        kill -TERM -- "-$server" 2>/dev/null
        sleep 1
        kill -KILL -- "-$server" 2>/dev/null
    fi
    bare_remove "$base" $keep
    exit $code
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

inside() { # runs a shell command in the new system, in the clone once there is one
    bare_run "$system" "cd /root/reprise 2>/dev/null; $1" ${test_data:+REPRISE_TEST_DATA=/test-data}
}

# --- 1. A minimal system ------------------------------------------------------------------------------
[ -n "$(bare_mirror "$suite")" ] || die "the host's APT sources have no release $suite"
began=$(date +%s)
say "debootstrap $suite (minimal, with git, ca-certificates and curl)"
bare_make "$suite" "$system" git,ca-certificates,curl
bare_mount "$system"
mkdir -p "$system/mnt/origin"
show() { # host folder, name inside: read-only
    mkdir -p "$system$2"
    mount --bind "$1" "$system$2"
    mount -o remount,bind,ro "$system$2"
}
if [ -n "$test_data" ]; then show "$test_data" /test-data; fi
say "the bare system stands after $(($(date +%s) - began)) s"

# --- 2. Clone and set up -----------------------------------------------------------------------------
# A bare copy of HEAD, so that a worktree or a shallow clone on the host works as well.
git clone -q --bare --no-hardlinks "file://$root" "$base/origin.git" || die "git clone"
git -C "$base/origin.git" update-ref refs/heads/fresh "$(git -C "$root" rev-parse HEAD)"
git -C "$base/origin.git" symbolic-ref HEAD refs/heads/fresh
show "$base/origin.git" /mnt/origin
inside "git config --global --add safe.directory '*' && git clone -q file:///mnt/origin /root/reprise" ||
    die "git clone inside"
say "cloned $(inside 'git log -1 --format="%h %s"')"

# --- 3. The stages ------------------------------------------------------------------------------------
stage_setup() {
    inside "./dev setup" || die "./dev setup"
    inside "./dev setup" | grep -q 'all packages are there' || die "a second ./dev setup found something to do"
}

stage_build() { inside "./dev build" || die "./dev build"; }

inside_server() {
    # dev execs the server, so this process group is first the setup, then only the server.
    # shellcheck disable=SC2086
    exec setsid chroot "$system" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 TERM=dumb $bare_network /bin/sh -c "cd /root/reprise && exec ./dev serve --port $port"
}

stage_serve() {
    readme=$system/root/reprise/README.md
    command=$(bare_readme_command "$readme")
    expected=$(bare_readme_expected "$readme")
    if [ -z "$command" ] || [ -z "$expected" ]; then die "README.md has no marked curl block or no expected text"; fi
    command=$(echo "$command" | sed "s/:8000/:$port/g")

    began=$(date +%s)
    say "./dev serve --port $port"
    inside_server >"$base/serve.log" 2>&1 </dev/null &
    server=$!
    until [ "$(curl -s -o /dev/null -w '%{http_code}' --noproxy '*' "http://127.0.0.1:$port/health/ready")" = 200 ]; do
        kill -0 "$server" 2>/dev/null || { server=; cat "$base/serve.log"; die "./dev serve ended"; }
        if [ $(($(date +%s) - began)) -ge "$wait_s" ]; then
            tail -n 40 "$base/serve.log"
            die "not ready after $wait_s s"
        fi
        sleep 1
    done
    cat "$base/serve.log"
    say "ready after $(($(date +%s) - began)) s (packages, build and start together)"

    echo "$command"
    answer=$(inside "$command") || { cat "$base/serve.log"; die "the README's curl command"; }
    echo "$answer"
    case $answer in
    *"$expected"*) say "the answer has $expected" ;;
    *) die "the answer lacks $expected" ;;
    esac

    kill -TERM "$server"
    code=0
    wait "$server" || code=$?
    server=
    [ $code = 0 ] || { tail -n 20 "$base/serve.log"; die "the server ended with exit code $code on SIGTERM"; }
}

stage_test() { inside "./dev test" || die "./dev test"; }

for stage in setup build serve test; do
    case " $stages " in
    *" $stage "*)
        began_stage=$(date +%s)
        "stage_$stage"
        say "ok: $stage ($(($(date +%s) - began_stage)) s)" ;;
    esac
done
