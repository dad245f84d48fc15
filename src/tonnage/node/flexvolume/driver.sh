#!/bin/sh
# FlexVolume driver of tonnage. The kubelet runs it on the host, where only a shell can be counted on. It hands each call
# to the node agent through a folder in memory, and prints the answer, one JSON object. Options may hold Secrets: they
# are written nowhere else.
exec 2>/dev/null
umask 077
spool='@SPOOL@'

fail() {
  printf '{"status":"Failure","message":"%s"}\n' "$1"
  exit 1
}

case $1 in
  init)
    printf '%s\n' '@INIT@'
    exit 0
    ;;
  mount | unmount) ;;
  *)
    printf '{"status":"Not supported"}\n'
    exit 1
    ;;
esac

new=$(mktemp -d "$spool/.new.XXXXXXXX") || fail "tonnage node agent has not run, or its folder is full: $spool"
call="$spool/q.${new##*.}"
trap 'rm -rf "$new" "$call"' EXIT
trap 'exit 1' HUP INT TERM
mkfifo "$new/answer" || fail "the folder of tonnage node agent is full: $spool"
printf '%s\0' "$0" "$@" >"$new/request" || fail "the folder of tonnage node agent is full: $spool"
# Open for reading before the agent sees the call, so that it always finds a reader while this process lives.
exec 3<>"$new/answer" || fail "cannot open the answer in $spool"
mv "$new" "$call" || fail "cannot hand the call to tonnage node agent in $spool"
# Ends by itself within a second of the call or of this process, so that no signal can be missed.
(
  waited=0
  while [ -d "$call" ] && kill -0 $$; do
    if [ "$waited" -ge @SECONDS@ ]; then
      printf '{"status":"Failure","message":"tonnage node agent is not running, or is still at work"}\n' >&3
      break
    fi
    sleep 1
    waited=$((waited + 1))
  done
) >/dev/null &
IFS= read -r answer <&3
printf '%s\n' "$answer"
case $answer in
  '{"status":"Success"'*) exit 0 ;;
esac
exit 1
