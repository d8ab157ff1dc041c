package main

import (
	"database/sql"
	"encoding/json"
	"net/http"
)

func pay(db *sql.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Amount json.Number }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tx, err := db.BeginTx(r.Context(), nil)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		defer tx.Rollback()
		var id int64
		err = tx.QueryRow(`INSERT INTO payment (amount) VALUES ($1) RETURNING id`,
			request.Amount).Scan(&id)
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(map[string]int64{"payment": id})
	}
}
