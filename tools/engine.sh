#!/usr/bin/env bash
# Makes sure that a Docker engine answers, and stops again what it started and nothing else.
#   tools/engine.sh start [DIRECTORY]    DIRECTORY takes the engine's log and pid file; default .engine
#   tools/engine.sh stop [DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
COMMAND=${1:-}
DIRECTORY=${2:-.engine}
PID_FILE=$DIRECTORY/dockerd.pid
LOG=$DIRECTORY/dockerd.log
SERVICE_MARK=$DIRECTORY/service-started
WAIT=60 # seconds

say() { echo "engine: $*" >&2; }
give_up() { say "$@"; exit 1; }
answers() { docker version --format '{{.Server.Version}}' 2>/dev/null; }

wait_for_it() { # $1: pid that must stay alive, or empty
    local until=$((SECONDS + WAIT))
    while ! answers >/dev/null; do
        if [ -n "$1" ] && ! kill -0 "$1" 2>/dev/null; then
            rm -f "$PID_FILE"
            tail -n 20 "$LOG" >&2
            give_up "dockerd ended at once; the end of $LOG is above"
        fi
        if [ $SECONDS -ge $until ]; then
            [ -z "$1" ] || tail -n 20 "$LOG" >&2
            return 1
        fi
        sleep 0.5
    done
    say "Docker $(answers) answers"
}

# Two engines in one network namespace take each other's bridge away, so a process that exists is waited for.
running() {
    local pid
    pid=$(cat /var/run/docker.pid 2>/dev/null || true)
    [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && return 0
    for comm in /proc/[0-9]*/comm; do
        [ "$(cat "$comm" 2>/dev/null || true)" = dockerd ] && return 0
    done
    return 1
}

install_engine() {
    command -v apt-get >/dev/null || give_up "there is no dockerd, and no apt-get to install one with; install Docker"
    say "installing docker.io"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --no-install-recommends docker.io >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install --yes --no-install-recommends docker.io >/dev/null; } ||
        give_up "could not install docker.io (apt-get said so above)"
    # Newer releases keep the client in a package of its own.
    command -v docker >/dev/null || apt-get install --yes --no-install-recommends docker-cli >/dev/null ||
        give_up "could not install docker-cli (apt-get said so above)"
}

start() {
    if command -v docker >/dev/null && answers >/dev/null; then
        return 0
    fi
    if [ -n "${DOCKER_HOST:-}" ]; then
        give_up "DOCKER_HOST is $DOCKER_HOST, and no engine answers there; start it, or unset DOCKER_HOST"
    fi
    if [ "$(id -u)" != 0 ]; then
        command -v dockerd >/dev/null || give_up "Docker is not installed: sudo apt-get install docker.io"
        running || give_up "the Docker engine does not run: sudo systemctl start docker"
        give_up "the Docker engine runs and does not answer $(id -un): sudo usermod -aG docker $(id -un), and log in again"
    fi
    command -v dockerd >/dev/null && command -v docker >/dev/null || install_engine
    mkdir -p "$DIRECTORY"
    if running; then
        say "a dockerd is there already; waiting for it"
        wait_for_it "" || give_up "dockerd runs (pid $(cat /var/run/docker.pid 2>/dev/null || echo '?')) and has not answered for $WAIT s"
    elif [ -d /run/systemd/system ]; then
        say "starting the service docker"
        systemctl start docker
        : >"$SERVICE_MARK"
        wait_for_it "" || give_up "the service docker has not answered for $WAIT s: journalctl -u docker"
    else
        say "starting dockerd; its log is $LOG"
        # A session of its own: Ctrl-C on make is not for the engine.
        setsid dockerd >"$LOG" 2>&1 </dev/null &
        echo $! >"$PID_FILE"
        wait_for_it $! || { stop; give_up "dockerd has not answered for $WAIT s; the end of $LOG is above"; }
    fi
}

stop() {
    if [ -e "$SERVICE_MARK" ]; then
        say "stopping the service docker, which this script started"
        systemctl stop docker docker.socket
        rm -f "$SERVICE_MARK"
    fi
    [ -e "$PID_FILE" ] || return 0
    local pid until
    pid=$(cat "$PID_FILE")
    # The number may belong to another process by now.
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null || true)" = dockerd ]; then
        say "stopping dockerd (pid $pid), which this script started"
        kill -TERM "$pid"
        until=$((SECONDS + WAIT))
        while [ -e "/proc/$pid" ] && [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null || echo Z)" != Z ]; do
            [ $SECONDS -lt $until ] || give_up "dockerd (pid $pid) has not ended within $WAIT s"
            sleep 0.2
        done
    fi
    rm -f "$PID_FILE"
}

case $COMMAND in
    start) start ;;
    stop) stop ;;
    *) echo "usage: tools/engine.sh start|stop [DIRECTORY]" >&2; exit 2 ;;
esac
