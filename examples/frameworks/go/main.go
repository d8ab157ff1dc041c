// Serves one of the Go endpoints: go build main.go idempotent.go after.go
package main

import (
	"database/sql"
	"log"
	"net/http"
	"os"

	_ "github.com/lib/pq"
)

func main() {
	db, err := sql.Open("postgres", "") // lib/pq reads the environment
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(10) // the default has no limit
	http.HandleFunc("/payments", pay(db))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
