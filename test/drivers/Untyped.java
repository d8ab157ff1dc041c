import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/** Runs the statements of standard input with JDBC, and prints the result of each. */
public class Untyped {
    private static final Map<String, String> SAVED = new HashMap<>();

    /** In mode "varchar", setString() gives a parameter the type varchar. */
    private static String options(String mode) {
        switch (mode) {
            case "literals":
                return "preferQueryMode=simple";
            case "untyped":
                return "stringtype=unspecified";
            case "prepared":
                return "stringtype=unspecified&prepareThreshold=1";
            default:
                return "prepareThreshold=1";
        }
    }

    private static void set(PreparedStatement statement, int number, String field)
            throws SQLException {
        String kind = field.split(":", 2)[0];
        String value = field.split(":", 2)[1];
        if (value.startsWith("$")) value = SAVED.get(value.substring(1));
        switch (kind) {
            case "null":
                statement.setObject(number, null);
                break;
            case "uuid":
                statement.setObject(number, UUID.fromString(value));
                break;
            case "other":
                statement.setObject(number, value, Types.OTHER);
                break;
            default:
                statement.setString(number, value);
        }
    }

    private static String result(Connection connection, String[] fields) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(fields[1])) {
            for (int i = 2; i < fields.length; i++) set(statement, i - 1, fields[i]);
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        } catch (PSQLException error) {
            ServerErrorMessage e = error.getServerErrorMessage();
            if (e == null) throw error;
            return "ERROR " + e.getSQLState() + " "
                    + Stream.of(e.getSchema(), e.getConstraint(), e.getDatatype(), e.getColumn())
                              .map(field -> field == null ? "-" : field)
                              .collect(Collectors.joining(" "));
        }
    }

    public static void main(String[] arguments) throws Exception {
        String address = "jdbc:postgresql://" + System.getenv("PGHOST") + ":"
                + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE") + "?"
                + options(arguments[0]);
        try (Connection connection =
                        DriverManager.getConnection(address, System.getenv("PGUSER"), null)) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] fields = line.split("\t", -1);
                SAVED.put(fields[0], result(connection, fields));
                System.out.println(SAVED.get(fields[0]));
            }
        }
    }
}
