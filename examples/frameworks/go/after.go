package main

import (
	"database/sql"
	"encoding/json"
	"net/http"
)

func pay(db *sql.DB) http.HandlerFunc {
	return once(db, "payments", func(tx *sql.Tx, body []byte) (int, any, error) {
		var request struct{ Amount json.Number }
		if err := json.Unmarshal(body, &request); err != nil {
			return 0, nil, invalid{err}
		}
		var id int64
		err := tx.QueryRow(`INSERT INTO payment (amount) VALUES ($1) RETURNING id`,
			request.Amount).Scan(&id)
		return http.StatusCreated, map[string]int64{"payment": id}, err
	})
}
