import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

@Service
public class PaymentService implements Payments {
    @Autowired private JdbcTemplate jdbc;
    @Autowired private Idempotency idempotency;

    @Transactional
    public ResponseEntity<String> pay(String key, String request) {
        return idempotency.once("payments", key, request, () -> jdbc.queryForObject(
                "INSERT INTO payment (amount) VALUES ((?::jsonb->>'amount')::numeric)"
                        + " RETURNING jsonb_build_object('payment', id)",
                String.class, request));
    }
}
