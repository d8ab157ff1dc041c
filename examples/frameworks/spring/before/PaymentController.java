import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

@RestController
public class PaymentController {
    @Autowired private Payments payments;

    @PostMapping("/payments")
    public ResponseEntity<String> pay(
            @RequestHeader(value = "Idempotency-Key", required = false) String key,
            @RequestBody String request) {
        return payments.pay(request);
    }
}
