import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

@Service
public class PaymentService implements Payments {
    @Autowired private JdbcTemplate jdbc;

    @Transactional
    public ResponseEntity<String> pay(String request) {
        return ResponseEntity.status(201).body(jdbc.queryForObject(
                "INSERT INTO payment (amount) VALUES ((?::jsonb->>'amount')::numeric)"
                        + " RETURNING jsonb_build_object('payment', id)",
                String.class, request));
    }
}
