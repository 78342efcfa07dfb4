// Has porcupine judge a history: each list of the mirrored tables, as reads that waited for the mirror saw it, is a
// register that is linearizable. A read begins when its client asks, so it has to see all that was committed by then.
//
// Exits with 1 if a list is not, or if the search of one takes too long.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const longest = 10 * time.Minute

// A line of the history: an operation begins or ends.
type line struct {
	Time    int64
	Process any
	F       string
	Type    string
	Door    string
	Value   any
	Deletes []string
}

// What an operation does to one list: it appends a text, deletes the list, or reads it.
type input struct{ key, kind, text string }

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		lists := map[string][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(input).key
			lists[key] = append(lists[key], operation)
		}
		partitions := make([][]porcupine.Operation, 0, len(lists))
		for _, operations := range lists {
			partitions = append(partitions, operations)
		}
		return partitions
	},
	Init: func() any { return "" },
	Step: func(state, in, _ any) (bool, any) {
		operation := in.(input)
		switch operation.kind {
		case "append":
			return true, state.(string) + operation.text
		case "delete":
			return true, ""
		}
		return state == operation.text, state
	},
}

func text(value any) string {
	return strconv.FormatInt(int64(value.(float64)), 10) + ","
}

// The inputs of an operation that has ended; none of a read by a door that does not wait.
func inputs(began, ended line) (all []input) {
	for _, key := range ended.Deletes {
		all = append(all, input{key, "delete", ""})
	}
	values := began.Value
	if ended.Door == "wait" || ended.Door == "hybrid" {
		values = ended.Value
	}
	for _, micro := range values.([]any) {
		each := micro.([]any)
		key := each[1].(string)
		if each[0] == "append" {
			all = append(all, input{key, "append", text(each[2])})
		} else if ended.Door != "" && !strings.HasPrefix(key, "c/") {
			list := ""
			for _, value := range each[2].([]any) {
				list += text(value)
			}
			all = append(all, input{key, "read", list})
		}
	}
	return all
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	defer file.Close()
	began := map[any]line{}
	var history []porcupine.Operation
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<30)
	for lines.Scan() {
		var each line
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			panic(err)
		}
		if each.F != "txn" {
			continue
		}
		if each.Type == "invoke" {
			began[each.Process] = each
			continue
		}
		invocation, ok := began[each.Process]
		delete(began, each.Process)
		if !ok || each.Type == "fail" {
			continue
		}
		end := each.Time
		if each.Type == "info" {
			end = math.MaxInt64
		}
		for _, in := range inputs(invocation, each) {
			history = append(history, porcupine.Operation{Input: in, Call: invocation.Time, Return: end})
		}
	}
	if lines.Err() != nil {
		panic(lines.Err())
	}
	result := porcupine.CheckOperationsTimeout(model, history, longest)
	fmt.Printf("%s: %d operations on %d lists\n", result, len(history), len(model.Partition(history)))
	if result != porcupine.Ok {
		os.Exit(1)
	}
}
