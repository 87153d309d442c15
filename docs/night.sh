#!/bin/sh
# night.sh FOLDER: OLD and NEW are plans with a launcher. The exit code is 1 if a step found a
# regression, 130 for a night that a signal ended, else that of the first step that did not pass.
set -u
night=$1 tasks=${TASKS:-gsm8k} worst=0 first='' name='the start' child=''
who="${REHEARSE:+REHEARSAL, }${NEW##*/} against ${OLD##*/}"
mkdir -p "$(dirname "$night")" && mkdir "$night" || exit 2 # what is finished is not asked again
: >"$night/alerts.txt"
here=$(cd "$night" && pwd -P)
limit=''
[ -n "${HOURS:-}" ] && timeout --foreground 1 true && limit="timeout --foreground -k 60 ${HOURS}h"

send() { # send the line of the night to where people read it, such as a chat
    printf '%s\n' "$1"
}

alert() { # CODE TEXT: keep a line; the last regression is sent, else what went wrong first
    printf '%s\n' "$2" >>"$night/alerts.txt"
    if [ $worst -eq 0 ] || [ "$1" -eq 1 ] || [ "$1" -eq 130 ]; then worst=$1 first=$2; fi
}

line() { # NAME: the line that a command left, else its error, else its last words
    grep -m 1 . "$night/$1.line" 2>/dev/null || grep -m 1 ^error: "$night/$1.log" ||
        { grep -v '^::' "$night/$1.log" | grep . || echo "no words: is the disk full?"; } |
        tail -n 1
}

value() { sed -n "s/^$2: *//p" "$night/$1.served"; } # NAME KEY: what serve printed

await() { # OUTPUT LOG COMMAND...: run it so that a signal is heard at once, and passed on
    output=$1 log=$2
    shift 2
    $limit "$@" >"$output" 2>"$log" &
    child=$!
    wait $child
    code=$?
    child=''
    return $code
}

list_servers() { # print a line for each: ID  STATE  logs FOLDER
    serve-eval serve --list --json |
        python3 -c 'import json, sys
for one in json.load(sys.stdin)["result"]["servers"]:
    print(one["id"], one["state"], "logs " + one["log_dir"], sep="  ")'
}

find_dead() { # print the first side whose servers have ended
    list_servers >"$night/servers.txt"
    for side in old new; do
        grep -q "^$(value $side id)  ready" "$night/servers.txt" || { echo $side && return; }
    done
}

step() { # NAME COMMAND...: run a step with a folder of its own, and alert unless it passes
    name=$1
    shift
    dead=$(find_dead)
    if [ -n "$dead" ]; then
        alert 4 "$name was not run: the servers of $dead have ended ($night/$dead/logs)"
        return
    fi
    await "$night/$name.txt" "$night/$name.log" \
        "$@" -o "$night/$name" --notify-text "$night/$name.line"
    code=$?
    grep '^::' "$night/$name.log" >&2 # annotations, which GitHub reads from the output of the job
    [ $code -eq 0 ] && return
    said=$(line "$name")
    case $said in *"$night/$name"*) ;; *) said="$said ($night/$name)" ;; esac
    next=$(sed -n 's/^serve-eval /next: &/p' "$night/$name/summary.md" 2>/dev/null | head -n 1)
    dead=$(find_dead)
    if [ -n "$dead" ]; then
        alert 4 "$name: the servers of $dead have ended ($night/$dead/logs): $said"
    elif [ $code -eq 124 ]; then
        alert 4 "$name was stopped after $HOURS hours: $said"
    else
        alert $code "$name ended with $code: $said${next:+; $next}"
    fi
}

start() { # NAME PLAN: start the servers of a plan, and keep what serve prints about them
    name="the start of $1"
    await "$night/$1.served" "$night/$1.log" \
        serve-eval serve "$2" --detach -o "$here/$1" ${REHEARSE:+--rehearse}
    code=$?
    grep '^rehearsal: ' "$night/$1.log" >&2 # what the rehearsal of this plan leaves out
    case $code$(value "$1" logs) in
        0"$here"/*) return ;;
        0*) # of another night, or of one that was killed: perhaps another image, and they may end
            left=$(value "$1" logs) # and the servers that the same night left with them
            ids=$(list_servers | grep -F " logs ${left%/*/*}/" |
                sed 's/^\([0-9a-f]*\) .*/; serve-eval serve --stop \1/' | tr -d '\n')
            alert 2 "$1 was not started: its servers are up already ($left); end them if nothing \
uses them: ${ids#; }"
            exit 2 ;;
    esac
    if [ $code -eq 124 ]; then
        alert 4 "$1 did not start within $HOURS hours ($night/$1.log)"
    else
        cause=$(sed -n 's/^  //p' "$night/$1.log" | tail -n 1) # the last line of the server's log
        alert $code "$1 did not start: $(line "$1")${cause:+: $cause} ($night/$1.log)"
    fi
    exit $worst
}

stop() { # STATE: stop the servers of this night that are in this state
    list_servers | grep -F " logs $here/" | grep "^[0-9a-f]* *$1" | {
        while read -r id rest; do serve-eval serve --stop "$id" >>"$night/stop.log" 2>&1 & done
        wait
    }
}

finish() { # send one line, and stop the servers
    trap '' INT TERM
    stop ready & # before anything else, since a signal may be followed by KILL
    more=$(($(wc -l <"$night/alerts.txt") - 1))
    [ $more -gt 0 ] && first="$first (+$more more in $night/alerts.txt)"
    [ -n "$first" ] && send "$who: $first"
    wait
    stop . # also what did not start
}

interrupt() {
    trap '' INT TERM
    [ -n "$child" ] && kill -TERM $child
    alert 130 "interrupted during $name ($night)"
    exit 130
}
trap finish EXIT
trap interrupt INT TERM

start old "$OLD"
start new "$NEW"
old=$(value old 'base URL') new=$(value new 'base URL') model=$(value new model) same=''
if [ "$old" = "$new" ]; then
    alert 2 "old and new are the same servers ($new): the plans must differ"
    exit 2
fi
[ "$(value old model)" = "$model" ] && same=$model # else verify reads the names from the servers

step smoke serve-eval smoke "$new" --model "$model" ${KNOWN:+--known "$KNOWN"}
step verify serve-eval verify "$old" "$new" ${same:+--model "$same"} ${FLOOR:+--floor $FLOOR}
step compare serve-eval compare "$old" "$new" --model "$(value old model)" --set "compare.model_b=$model" \
    --tasks "$tasks" ${LIMIT:+--limit $LIMIT}
if [ -n "${REFERENCES:-}" ]; then
    step reference serve-eval run "$NEW" --base-url "$new" --references-dir "$REFERENCES" \
        --verdict paired ${LIMIT:+--limit $LIMIT}
fi
[ $worst -eq 0 ] && [ -n "${HEARTBEAT:-}" ] && send "$who: OK, every step passed ($night)"
[ -n "${KEEP_DAYS:-}" ] && find "$(dirname "$night")" -mindepth 1 -maxdepth 1 -type d \
    -name '20??-??-??' -mtime "+$KEEP_DAYS" -exec rm -r {} +
exit $worst
