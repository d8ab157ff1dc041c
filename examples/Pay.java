import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A payment that is made once, however often it is asked for (JDBC).
 *
 * <pre>java -cp postgresql.jar Pay.java KEY AMOUNT</pre>
 *
 * Prints the answer as JSON; an error goes to standard error as a problem document (RFC 9457). Connects
 * as PGHOST, PGPORT, PGDATABASE and PGUSER say, to a database with the scope and table of setup.sql.
 */
public class Pay {
    private static final int ATTEMPTS = 10;
    /**
     * Nothing is wrong with the request: the connection is lost, a race is lost, the server is short of
     * something or restarting, another try is at it, too many came at once.
     */
    private static final Pattern TRANSIENT = Pattern.compile("(08|40|53|57P|ID001|ID009).*");
    /** The hints of ID001 and ID009, which the driver puts into the message. */
    private static final Pattern COME_BACK = Pattern.compile("after ([\\d.]+) seconds");

    /** Claim, effect and complete, in one transaction. */
    static String payOnce(Connection connection, String key, String amount) throws SQLException {
        connection.setAutoCommit(false);
        String answer;
        try (PreparedStatement claim = connection.prepareStatement(
                "SELECT claimed, token, response FROM idem.claim('payments', ?, jsonb_build_object('amount', ?::numeric))")) {
            claim.setString(1, key);
            claim.setString(2, amount);
            try (ResultSet row = claim.executeQuery()) {
                row.next();
                answer = row.getBoolean("claimed")
                        ? complete(connection, row.getString("token"), insert(connection, amount))
                        : row.getString("response"); // a retry: the first answer
            }
        }
        connection.commit();
        return answer;
    }

    private static String insert(Connection connection, String amount) throws SQLException {
        return value(connection,
                "INSERT INTO payment (amount) VALUES (?::numeric) RETURNING to_jsonb(payment)", amount);
    }

    private static String complete(Connection connection, String token, String answer) throws SQLException {
        return value(connection, "SELECT idem.complete(?, ?::jsonb)", token, answer);
    }

    /** Tries with the same key until there is an answer, or an error that will not pass. */
    static String pay(String key, String amount) throws SQLException, InterruptedException {
        for (int attempt = 1; ; attempt++) {
            try (Connection connection = connect()) {
                return payOnce(connection, key, amount);
            } catch (SQLException error) {
                if (attempt == ATTEMPTS || !TRANSIENT.matcher(error.getSQLState()).matches()) throw error;
                double backoff = ThreadLocalRandom.current().nextDouble() * Math.min(5, 0.05 * Math.pow(2, attempt));
                Thread.sleep((long) (1000 * Math.max(retryAfter(error), backoff)));
            }
        }
    }

    /** In seconds. */
    private static double retryAfter(SQLException error) {
        Matcher found = COME_BACK.matcher(error.getMessage());
        return found.find() ? Double.parseDouble(found.group(1)) : 0;
    }

    private static String problem(SQLException error) throws SQLException {
        try (Connection connection = connect()) {
            return value(connection, "SELECT idem.problem(?, ?)", error.getSQLState(), message(error));
        }
    }

    /** The driver's message has severity and hint around the server's own words. */
    private static String message(SQLException error) {
        return error.getMessage().lines().findFirst().orElse("").replaceFirst("^\\S+: ", "");
    }

    private static Connection connect() throws SQLException {
        return DriverManager.getConnection(
                "jdbc:postgresql://" + environment("PGHOST", "localhost") + ":" + environment("PGPORT", "5432") + "/"
                        + environment("PGDATABASE", "postgres"),
                environment("PGUSER", System.getProperty("user.name")), System.getenv("PGPASSWORD"));
    }

    private static String environment(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    private static String value(Connection connection, String sql, String... parameters) throws SQLException {
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
