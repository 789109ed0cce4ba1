#!/bin/sh
# Installs the Debian package into bare systems and serves with it over TLS: what ./dev package made, a minimal
# Debian of each release, apt-get install, systemctl start, the README's curl command over https.
#
#   tools/check_package.sh [--deb FILE] [--suites "bookworm trixie"] [--keep]
#
#   --deb FILE        the package (the one in build/)
#   --suites NAMES    the Debian releases (bookworm and trixie, which are Debian 12 and 13)
#   --keep            do not delete the systems, and print their path
#
# Needs root, debootstrap, curl, openssl, unshare and nsenter on the host, and a kernel with cgroup 2. A release that the
# host's APT sources lack comes from the mirror of its own release. systemd runs as the first process of namespaces of its
# own; the network is the host's.
# Exit code 0: every release installed, served and removed the package as documented.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
deb=
suites="bookworm trixie"
keep=no
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
    exit "$1"
}
while [ $# -gt 0 ]; do
    case $1 in
    --deb | --suites)
        [ $# -ge 2 ] || usage 2
        case $1 in
        --deb) deb=$2 ;;
        --suites) suites=$2 ;;
        esac
        shift ;;
    --keep) keep=yes ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
    shift
done
say() { echo "check_package: $*"; }
die() {
    say "FAILED: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || die "needs root (debootstrap, chroot and mount)"
for program in debootstrap curl openssl unshare nsenter python3; do
    command -v $program >/dev/null 2>&1 || die "$program is not installed"
done
if [ -z "$deb" ]; then
    for deb in "$root"/build/reprise_*.deb; do :; done
    [ -f "$deb" ] || die "no package in build/: ./dev package makes it"
fi
# shellcheck source=tools/bare_debian.sh
. "$root/tools/bare_debian.sh"

base=$(mktemp -d "${TMPDIR:-/var/tmp}/check_package.XXXXXX")
namespaces= # the process that holds them
cleanup() {
    code=$?
    trap - EXIT INT TERM HUP
    set +e
    stop_system
    bare_remove "$base" $keep
    exit $code
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- systemd as process 1 of a system -------------------------------------------------------------------
# Runs in new mount, PID, IPC, UTS and cgroup namespaces: a root of their own, then systemd.
# shellcheck disable=SC2016
boot='
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $folder; done
chmod 1777 tmp
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir -p .host
pivot_root . .host
umount -l /.host
exec env -i container=check_package PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
'

start_system() { # system
    unshare --mount --pid --ipc --uts --cgroup --fork --kill-child sh -c "$boot" sh "$1" >"$1.boot.log" 2>&1 </dev/null &
    namespaces=$!
    first=
    for _ in $(seq 100); do
        first=$(tr -d ' ' 2>/dev/null <"/proc/$namespaces/task/$namespaces/children" || true)
        if [ -n "$first" ] && within systemctl is-system-running 2>/dev/null | grep -qE '^(running|degraded)$'; then return 0; fi
        kill -0 $namespaces 2>/dev/null || break
        sleep 0.2
    done
    tail -n 20 "$1.boot.log"
    die "systemd did not start"
}

within() { # runs a command in the booted system
    nsenter --target "$first" --mount --pid --ipc --uts --cgroup --root --wd=/ \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}

stop_system() {
    if [ -n "$namespaces" ]; then
        kill -KILL $namespaces 2>/dev/null || true # --kill-child: systemd and everything in it
        wait $namespaces 2>/dev/null || true
        namespaces=
    fi
}

# --- one release ----------------------------------------------------------------------------------------
make_certificate() { # folder, common name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$2" \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$1/tls.key" -out "$1/tls.crt" 2>/dev/null
}

served_name() { # of the certificate on the port
    openssl s_client -connect "127.0.0.1:$port" </dev/null 2>/dev/null | openssl x509 -noout -subject
}

check_installed() { # system
    bare_run "$1" "reprise --version && reprise doctor" >"$1.doctor.log" 2>&1 || { cat "$1.doctor.log"; die "reprise doctor"; }
    say "$(head -n 1 "$1.doctor.log") on $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$1/etc/os-release")"
    missing=$(bare_run "$1" "ldd /usr/bin/reprise" | grep 'not found' || true)
    [ -z "$missing" ] || die "libraries are missing: $missing"
    bare_run "$1" "getent passwd reprise" | grep -q nologin || die "there is no user reprise"
    bare_run "$1" "systemctl is-enabled reprise" 2>/dev/null | grep -qx disabled || die "the service is not disabled"
    bare_run "$1" "bash -n /usr/share/bash-completion/completions/reprise" || die "the completion is not valid"
}

control() { # start, reload or stop
    within systemctl "$1" reprise || { within journalctl -u reprise --no-pager -n 40; die "systemctl $1 reprise"; }
}

check_service() { # system
    command=$(bare_readme_command "$root/README.md" | sed "s|http://\([^/ ]*\):8000|https://\1:$port|g")
    expected=$(bare_readme_expected "$root/README.md")
    case $command in *"https://"*) ;; *) die "README.md has no marked curl block" ;; esac

    # As docs/install.md says.
    mkdir -p "$1/etc/reprise"
    make_certificate "$1/etc/reprise" first
    bare_run "$1" "chown reprise /etc/reprise/tls.key && chmod 600 /etc/reprise/tls.key"
    printf 'REPRISE_PORT=%s\nREPRISE_TLS_CERT=/etc/reprise/tls.crt\nREPRISE_TLS_KEY=/etc/reprise/tls.key\n' "$port" \
        >>"$1/etc/default/reprise"
    cp "$1/etc/reprise/tls.crt" "$1.first.crt"
    start_system "$1"
    [ "$(within systemctl is-active reprise || true)" = inactive ] || die "the service runs without having been started"
    control start
    pid=$(within systemctl show -P MainPID reprise)
    [ "$(within stat -c %U "/proc/$pid")" = reprise ] ||
        die "the service does not run as the user reprise"
    say "started by systemd as the user reprise"
    echo "$command"
    answer=$(CURL_CA_BUNDLE="$1.first.crt" no_proxy='*' sh -c "$command") || die "the README's curl command over https"
    echo "$answer"
    case $answer in
    *"$expected"*) say "the answer has $expected" ;;
    *) die "the answer lacks $expected" ;;
    esac
    if curl -s -o "$1.plain" --noproxy '*' "http://127.0.0.1:$port/v1/models"; then die "plain HTTP is answered"; fi

    make_certificate "$1/etc/reprise" second
    control reload
    for _ in $(seq 50); do
        if served_name | grep -q second; then break; fi
        sleep 0.1
    done
    served_name | grep -q second || die "systemctl reload did not renew the certificate"
    control stop
    [ "$(within systemctl show -P Result reprise)" = success ] || die "systemctl stop: $(within systemctl show -P Result reprise)"
    say "the certificate is renewed by systemctl reload; systemctl stop ends the service"
    stop_system
}

check_removed() { # system
    bare_run "$1" "DEBIAN_FRONTEND=noninteractive apt-get purge -y reprise" >"$1.purge.log" 2>&1 ||
        { cat "$1.purge.log"; die "apt-get purge"; }
    left=$(find "$1/usr" "$1/etc/default" "$1/var/lib" "$1/etc/systemd" -name '*reprise*' ! -path '*/dpkg/*' ! -path '*/deb-systemd-*')
    [ -z "$left" ] || die "apt-get purge leaves: $left"
}

for suite in $suites; do
    began=$(date +%s)
    system=$base/$suite
    port=$(bare_free_port)
    say "debootstrap $suite (minimal)"
    bare_make "$suite" "$system" ca-certificates
    bare_mount "$system"
    cp "$deb" "$system/root/reprise.deb"
    bare_run "$system" "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /root/reprise.deb" \
        >"$system.install.log" 2>&1 || { tail -n 40 "$system.install.log"; die "apt-get install"; }
    check_installed "$system"
    check_service "$system"
    check_removed "$system"
    say "ok: $suite ($(($(date +%s) - began)) s)"
done
