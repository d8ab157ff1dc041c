package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
)

const attempts = 3

var (
	// Lost connections and races, a lack of resources, a restart of the server.
	transient = regexp.MustCompile(`^(08|40|53|57P)`)
	refused   = regexp.MustCompile(`^(ID|22)`)
)

// work makes the effect in tx, and returns a status and an answer. It may run more than once.
type work func(tx *sql.Tx, body []byte) (status int, answer any, err error)

// What work returns for a request that it cannot read.
type invalid struct{ error }

// once runs work once per Idempotency-Key, in one transaction with its effect.
func once(db *sql.DB, scope string, do work) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
		for attempt := 1; ; attempt++ {
			status, answer, replayed, err := run(r.Context(), db, scope, key, body, do)
			if err == nil {
				if replayed {
					w.Header().Set("Idempotent-Replayed", "true")
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				io.WriteString(w, answer)
				return
			}
			if attempt == attempts || !isTransient(err) {
				refuse(w, db, err)
				return
			}
			time.Sleep(time.Duration(rand.Int63n(int64(100 * time.Millisecond))))
		}
	}
}

func run(ctx context.Context, db *sql.DB, scope, key string, body []byte, do work) (
	status int, answer string, replayed bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, "", false, err
	}
	defer tx.Rollback() // has no effect after Commit

	var claimed bool
	var token, response sql.NullString
	var stored sql.NullInt64
	err = tx.QueryRow(`SELECT claimed, token, coalesce(status, 200), response
		FROM idem.claim($1, $2, $3::jsonb, wait => '1 second')`,
		scope, key, string(body)).Scan(&claimed, &token, &stored, &response)
	if err != nil {
		return 0, "", false, err
	}
	if !claimed {
		return int(stored.Int64), response.String, true, tx.Commit()
	}
	status, made, err := do(tx, body)
	if err != nil {
		return 0, "", false, err
	}
	document, err := json.Marshal(made)
	if err != nil {
		return 0, "", false, err
	}
	err = tx.QueryRow(`SELECT idem.complete($1, $2::jsonb, $3)`,
		token.String, string(document), status).Scan(&answer)
	if err != nil {
		return 0, "", false, err
	}
	return status, answer, false, tx.Commit()
}

// An error that is neither the server's nor of the request is a lost connection.
func isTransient(err error) bool {
	var server *pq.Error
	if errors.As(err, &server) {
		return transient.MatchString(string(server.Code))
	}
	return !errors.As(err, &invalid{})
}

func refuse(w http.ResponseWriter, db *sql.DB, err error) {
	if errors.As(err, &invalid{}) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var server *pq.Error
	var status int
	var document string
	if !errors.As(err, &server) || !refused.MatchString(string(server.Code)) ||
		db.QueryRow(`SELECT idem.http_status($1), idem.problem($1, $2)`,
			string(server.Code), server.Message).Scan(&status, &document) != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	if milliseconds, err := strconv.Atoi(server.DataTypeName); err == nil { // of ID001, ID009 and ID014
		w.Header().Set("Retry-After", fmt.Sprint((milliseconds+999)/1000))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	io.WriteString(w, document)
}
