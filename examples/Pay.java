import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/**
 * Makes a payment exactly once, however often it is requested (JDBC).
 *
 * <pre>java -cp postgresql.jar Pay.java KEY AMOUNT</pre>
 *
 * Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
 * Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
 * the scope and the table of setup.sql.
 */
public class Pay {
    private static final int ATTEMPTS = 10;
    /**
     * Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
     * (53), a restart of the server (57P), a key that another caller holds (ID001), a limit
     * (ID009), an operation without attempts left (ID014).
     */
    private static final Pattern TRANSIENT =
            Pattern.compile("(08|40|53|57P|ID001|ID009|ID014).*");

    /** Claims the key, makes the payment and completes the claim, in one transaction. */
    static String payOnce(Connection connection, String key, String amount) throws SQLException {
        connection.setAutoCommit(false);
        String answer;
        try (PreparedStatement claim = connection.prepareStatement(
                "SELECT claimed, token, response FROM idem.claim('payments', ?,"
                        + " jsonb_build_object('amount', ?::numeric))")) {
            claim.setString(1, key);
            claim.setString(2, amount);
            try (ResultSet row = claim.executeQuery()) {
                row.next();
                answer = row.getBoolean("claimed")
                        ? complete(connection, row.getString("token"), insert(connection, amount))
                        : row.getString("response"); // a retry gets the first answer
            }
        }
        connection.commit();
        return answer;
    }

    private static String insert(Connection connection, String amount) throws SQLException {
        return value(connection,
                "INSERT INTO payment (amount) VALUES (?::numeric) RETURNING to_jsonb(payment)",
                amount);
    }

    private static String complete(Connection connection, String token, String answer)
            throws SQLException {
        return value(connection, "SELECT idem.complete(?, ?::jsonb)", token, answer);
    }

    /** Retries with the same key until there is an answer, or an error that a retry cannot cure. */
    static String pay(String key, String amount) throws SQLException, InterruptedException {
        for (int attempt = 1; ; attempt++) {
            try (Connection connection = connect()) {
                return payOnce(connection, key, amount);
            } catch (SQLException error) {
                boolean isTransient = TRANSIENT.matcher(error.getSQLState()).matches();
                if (attempt == ATTEMPTS || !isTransient) throw error;
                double longest = Math.min(5, 0.05 * Math.pow(2, attempt));
                double backoff = ThreadLocalRandom.current().nextDouble() * longest;
                Thread.sleep((long) (1000 * Math.max(retryAfter(error), backoff)));
            }
        }
    }

    /** The time to wait, in seconds. ID001, ID009, ID014 have it in a field, in milliseconds. */
    private static double retryAfter(SQLException error) {
        if (!error.getSQLState().matches("ID001|ID009|ID014")) return 0;
        String milliseconds = fields(error).getDatatype();
        return milliseconds == null ? 0 : Long.parseLong(milliseconds) / 1000.0;
    }

    /** The fields of an error of the server; null for an error of the driver. */
    private static ServerErrorMessage fields(SQLException error) {
        return ((PSQLException) error).getServerErrorMessage();
    }

    private static String problem(SQLException error) throws SQLException {
        try (Connection connection = connect()) {
            String message = fields(error) == null ? null : fields(error).getMessage();
            return value(connection, "SELECT idem.problem(?, ?)", error.getSQLState(), message);
        }
    }

    private static Connection connect() throws SQLException {
        return DriverManager.getConnection(
                "jdbc:postgresql://" + environment("PGHOST", "localhost") + ":"
                        + environment("PGPORT", "5432") + "/"
                        + environment("PGDATABASE", "postgres"),
                environment("PGUSER", System.getProperty("user.name")),
                System.getenv("PGPASSWORD"));
    }

    private static String environment(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    private static String value(Connection connection, String sql, String... parameters)
            throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < parameters.length; i++) statement.setString(i + 1, parameters[i]);
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        try {
            System.out.println(pay(arguments[0], arguments[1]));
        } catch (SQLException error) {
            System.err.println(problem(error));
            System.exit(1);
        }
    }
}
