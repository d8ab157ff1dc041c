import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.core.NestedRuntimeException;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Component;
import org.springframework.transaction.interceptor.TransactionAspectSupport;

/** Runs operations once per Idempotency-Key, in one transaction with their effect. */
@Component
public class Idempotency {
    private static final int ATTEMPTS = 3;
    /** Lost connections and races, a lack of resources, a restart of the server. */
    private static final String TRANSIENT = "(08|40|53|57P).*";

    @Autowired private JdbcTemplate jdbc;

    /**
     * Claims the key, runs the work and completes the claim; or returns the stored answer. Call it
     * within a method that is @Transactional.
     */
    public ResponseEntity<String> once(
            String scope, String header, String request, Supplier<String> work) {
        String key = header == null ? null : header.replaceAll("^\"|\"$", "");
        return jdbc.queryForObject(
                "SELECT claimed, token, coalesce(status, 200) AS status, response"
                        + " FROM idem.claim(?, ?, ?::jsonb, wait => '1 second')",
                (claim, row) -> claim.getBoolean("claimed")
                        ? completed(claim.getString("token"), work.get())
                        : ResponseEntity.status(claim.getInt("status"))
                                .header("Idempotent-Replayed", "true")
                                .body(claim.getString("response")),
                scope, key, request);
    }

    private ResponseEntity<String> completed(String token, String answer) {
        if (TransactionAspectSupport.currentTransactionStatus().isRollbackOnly())
            throw new IllegalStateException("the work has rolled its transaction back");
        return ResponseEntity.status(201).body(jdbc.queryForObject(
                "SELECT idem.complete(?, ?::jsonb, 201)", String.class, token, answer));
    }

    /** Calls a method that is a transaction, again after an error that a retry can cure. */
    public ResponseEntity<String> retried(Supplier<ResponseEntity<String>> transaction) {
        for (int attempt = 1; ; attempt++) {
            try {
                return transaction.get();
            } catch (NestedRuntimeException error) { // of the data access, or of COMMIT
                if (!(error.getCause() instanceof SQLException)) throw error;
                SQLException cause = (SQLException) error.getCause();
                String state = String.valueOf(cause.getSQLState());
                if (state.matches("(ID|22).*")) return refusal(state, (PSQLException) cause);
                if (attempt == ATTEMPTS || !state.matches(TRANSIENT)) throw error;
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(ThreadLocalRandom.current().nextLong(100));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private ResponseEntity<String> refusal(String state, PSQLException cause) {
        ServerErrorMessage server = cause.getServerErrorMessage();
        ResponseEntity.BodyBuilder answer = ResponseEntity
                .status(jdbc.queryForObject("SELECT idem.http_status(?)", Integer.class, state))
                .contentType(MediaType.parseMediaType("application/problem+json"));
        String milliseconds = server.getDatatype(); // of ID001, ID009 and ID014
        if (milliseconds != null) {
            long seconds = (Long.parseLong(milliseconds) + 999) / 1000;
            answer.header("Retry-After", Long.toString(seconds));
        }
        return answer.body(jdbc.queryForObject(
                "SELECT idem.problem(?, ?)", String.class, state, server.getMessage()));
    }
}
