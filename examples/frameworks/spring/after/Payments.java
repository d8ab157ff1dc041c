import org.springframework.http.ResponseEntity;

public interface Payments {
    ResponseEntity<String> pay(String key, String request);
}
