#!/bin/sh
# One run, which remembers its frontier once all models have succeeded. A run that is repeated takes the same changes again.
UNTIL=$(mirror-pump status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["frontier"])')
SINCE=$(cat frontier 2>/dev/null || echo "$UNTIL")
export SINCE UNTIL
dbt run "$@" && echo "$UNTIL" > frontier
