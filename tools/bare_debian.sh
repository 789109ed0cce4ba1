# shellcheck shell=sh
# A minimal Debian from nothing, for check_fresh.sh and check_package.sh, which source this file. They define say
# and die. Needs root and debootstrap. Package sources are the host's: APT sources and Acquire settings, proxy
# variables and extra certificates. No mirror is named here: it comes from the host's APT.

# The variables that configure package sources, as words for env(1).
bare_network=
for bare_name in http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY \
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_CERT PIP_DEFAULT_TIMEOUT SSL_CERT_FILE; do
    bare_value=$(printenv $bare_name || true)
    case $bare_value in "" | *" "*) ;; *) bare_network="$bare_network $bare_name=$bare_value" ;; esac
done

# The host's first mirror that has the suite, as parsed by apt; "" if there is none.
bare_mirror() { # suite
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$1" '$1 == suite { print $2; exit }'
}

bare_free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Runs a shell command in a system with a clean environment; $3: more words for env(1).
bare_run() { # system, command, [variables]
    # shellcheck disable=SC2086
    chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
        ${3-} $bare_network /bin/sh -c "$2"
}

# Installs the suite at $2. A suite that the host does not have comes from the mirror of the host's own release,
# and is then the only source of the new system.
bare_make() { # suite, system, packages
    bare_from=$(bare_mirror "$1")
    bare_own=yes
    if [ -z "$bare_from" ]; then
        bare_own=no
        # shellcheck disable=SC1091
        bare_from=$(bare_mirror "$(. /etc/os-release && echo "$VERSION_CODENAME")")
    fi
    [ -n "$bare_from" ] || die "the host's APT sources have no Debian release"
    debootstrap --variant=minbase ${3:+--include="$3"} "$1" "$2" "$bare_from" >"$2.log" 2>&1 ||
        { tail -n 20 "$2.log"; die "debootstrap $1"; }
    # Sources with their keys, and Acquire settings including proxies; no hooks.
    if [ $bare_own = yes ]; then
        rm -f "$2/etc/apt/sources.list"
        for bare_file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
            [ -f "$bare_file" ] || continue
            cp "$bare_file" "$2$bare_file"
            for bare_key in $(grep -oE '/[^] ,]+\.(gpg|asc)' "$bare_file" || true); do
                if [ -f "$bare_key" ]; then
                    mkdir -p "$2$(dirname "$bare_key")"
                    cp "$bare_key" "$2$bare_key"
                fi
            done
        done
    fi
    for bare_file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
        if [ -f "$bare_file" ] && grep -q '^ *Acquire' "$bare_file"; then cp "$bare_file" "$2$bare_file"; fi
    done
    for bare_file in /etc/pip.conf /etc/resolv.conf /etc/hosts; do
        if [ -f "$bare_file" ]; then cp -L "$bare_file" "$2$bare_file"; fi
    done
    if ls /usr/local/share/ca-certificates/*.crt >/dev/null 2>&1 && [ -x "$2/usr/sbin/update-ca-certificates" ]; then
        cp /usr/local/share/ca-certificates/*.crt "$2/usr/local/share/ca-certificates/"
        bare_run "$2" update-ca-certificates >"$2.certificates.log" 2>&1
    fi
}

# /proc, /dev/shm and the usual devices.
bare_mount() { # system
    mount -t proc proc "$1/proc"
    mkdir -p "$1/dev/shm"
    mount -t tmpfs tmpfs "$1/dev/shm"
    for bare_name in null zero full random urandom tty; do # debootstrap makes them where it may
        if [ ! -c "$1/dev/$bare_name" ]; then
            touch "$1/dev/$bare_name"
            mount --bind "/dev/$bare_name" "$1/dev/$bare_name"
        fi
    done
}

# Removes a folder with systems in it: first our mounts and, when interrupted, those of debootstrap, latest first.
bare_remove() { # folder, keep: yes or no
    # shellcheck disable=SC2013
    for bare_point in $(awk -v base="$1/" 'index($2, base) == 1 { print $2 }' /proc/mounts | sort -r); do
        umount "$bare_point" || umount -l "$bare_point"
    done
    # Never delete through a mount that is still there.
    if [ "$2" = yes ] || grep -q " $1/" /proc/mounts; then
        say "left behind: $1"
    else
        rm -rf "$1"
    fi
}

# The README's command: the first fenced block after <!-- check_fresh: curl -->; and the text its answer must contain.
bare_readme_command() { # README.md
    awk '/<!-- check_fresh: curl -->/ { marked = 1 }
        marked && /^```/ { if (fenced) exit; fenced = 1; next }
        fenced { print }' "$1"
}
bare_readme_expected() { # README.md
    sed -n 's/.*<!-- check_fresh: expect \(.*\) -->.*/\1/p' "$1" | head -n 1
}
