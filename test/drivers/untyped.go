// Runs the statements of standard input with database/sql and lib/pq, and prints the result of each.
package main

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/lib/pq"
)

var saved = map[string]string{}

func parameter(field string) interface{} {
	kind, value, _ := strings.Cut(field, ":")
	switch {
	case kind == "null":
		return nil
	case strings.HasPrefix(value, "$"):
		return saved[value[1:]]
	}
	return value
}

func run(db *sql.DB, prepared bool, statement string, parameters []interface{}) (result string, err error) {
	if !prepared {
		err = db.QueryRow(statement, parameters...).Scan(&result)
		return result, err
	}
	plan, err := db.Prepare(statement)
	if err != nil {
		return "", err
	}
	defer plan.Close()
	err = plan.QueryRow(parameters...).Scan(&result)
	return result, err
}

func errorLine(err error) string {
	var e *pq.Error
	if !errors.As(err, &e) {
		log.Fatal(err)
	}
	line := "ERROR " + string(e.Code)
	for _, field := range []string{e.Schema, e.Constraint, e.DataTypeName, e.Column} {
		if field == "" {
			field = "-"
		}
		line += " " + field
	}
	return line
}

func main() {
	mode := os.Args[1]
	options := ""
	if mode == "parameters" {
		options = "binary_parameters=yes"
	}
	db, err := sql.Open("postgres", options)
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		parameters := []interface{}{}
		for _, field := range fields[2:] {
			parameters = append(parameters, parameter(field))
		}
		result, err := run(db, mode == "prepared", fields[1], parameters)
		if err != nil {
			result = errorLine(err)
		}
		saved[fields[0]] = result
		fmt.Println(result)
	}
}
