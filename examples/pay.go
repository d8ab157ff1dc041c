// Makes a payment exactly once, however often it is requested (database/sql, lib/pq).
//
//	go run pay.go KEY AMOUNT
//
// Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
// Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
// the scope and the table of setup.sql.
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/lib/pq"
)

const attempts = 10

// Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
// (53), a restart of the server (57P), a key that another caller holds (ID001), a limit (ID009), an
// operation without attempts left (ID014).
var transient = regexp.MustCompile(`^(08|40|53|57P|ID001|ID009|ID014)`)

// payOnce claims the key, makes the payment and completes the claim, in one transaction.
func payOnce(db *sql.DB, key, amount string) (answer string, err error) {
	tx, err := db.Begin()
	if err != nil {
		return "", err
	}
	defer tx.Rollback() // has no effect after Commit

	var claimed bool
	var token, response sql.NullString
	err = tx.QueryRow(`SELECT claimed, token, response
		FROM idem.claim('payments', $1, jsonb_build_object('amount', $2::numeric))`,
		key, amount).Scan(&claimed, &token, &response)
	if err != nil {
		return "", err
	}
	if !claimed {
		return response.String, tx.Commit() // a retry gets the first answer
	}
	var payment string
	err = tx.QueryRow(`INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment)`,
		amount).Scan(&payment)
	if err != nil {
		return "", err
	}
	err = tx.QueryRow(`SELECT idem.complete($1, $2)`, token, payment).Scan(&answer)
	if err != nil {
		return "", err
	}
	return answer, tx.Commit()
}

// pay retries with the same key until there is an answer, or an error that a retry cannot cure.
func pay(db *sql.DB, key, amount string) (string, error) {
	for attempt := 1; ; attempt++ {
		answer, err := payOnce(db, key, amount)
		if err == nil || attempt == attempts || !isTransient(err) {
			return answer, err
		}
		backoff := rand.Float64() * math.Min(5, 0.05*math.Pow(2, float64(attempt)))
		time.Sleep(time.Duration(math.Max(retryAfter(err), backoff) * float64(time.Second)))
	}
}

func isTransient(err error) bool {
	var fromServer *pq.Error
	return !errors.As(err, &fromServer) || transient.MatchString(string(fromServer.Code))
}

// retryAfter returns the time to wait, in seconds. ID001, ID009 and ID014 have it in a field, in
// milliseconds.
func retryAfter(err error) float64 {
	var fromServer *pq.Error
	if !errors.As(err, &fromServer) {
		return 0
	}
	milliseconds, _ := strconv.Atoi(fromServer.DataTypeName) // 0 if there is none, or a type's name
	return float64(milliseconds) / 1000
}

func problem(db *sql.DB, err *pq.Error) (document string, failed error) {
	failed = db.QueryRow(`SELECT idem.problem($1, $2)`, string(err.Code), err.Message).Scan(&document)
	return document, failed
}

func main() {
	rand.Seed(time.Now().UnixNano())
	db, err := sql.Open("postgres", "") // a pool; lib/pq reads the environment
	if err != nil {
		log.Fatal(err)
	}
	answer, err := pay(db, os.Args[1], os.Args[2])
	var fromServer *pq.Error
	if errors.As(err, &fromServer) {
		document, failed := problem(db, fromServer)
		if failed != nil {
			log.Fatal(err, failed)
		}
		fmt.Fprintln(os.Stderr, document)
		os.Exit(1)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer)
}
