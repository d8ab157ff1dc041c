import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import javax.sql.DataSource;
import org.springframework.aop.framework.autoproxy.InfrastructureAdvisorAutoProxyCreator;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Role;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.interceptor.BeanFactoryTransactionAttributeSourceAdvisor;
import org.springframework.transaction.interceptor.TransactionInterceptor;

/** Serves the controller of before/ or after/ on a port, with the HTTP server of the JDK. */
public class Application {
    @Bean
    public HikariDataSource dataSource() {
        HikariDataSource pool = new HikariDataSource();
        pool.setJdbcUrl("jdbc:postgresql://" + System.getenv("PGHOST") + ":"
                + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE"));
        pool.setUsername(System.getenv("PGUSER"));
        pool.setMaximumPoolSize(10);
        return pool;
    }

    @Bean
    public JdbcTemplate jdbcTemplate(DataSource dataSource) {
        return new JdbcTemplate(dataSource);
    }

    @Bean
    public PlatformTransactionManager transactionManager(DataSource dataSource) {
        return new DataSourceTransactionManager(dataSource);
    }

    // The proxies of @Transactional. @EnableTransactionManagement is the short form of this, but
    // Debian's Spring cannot generate the class that it needs on a current JDK.
    @Bean
    public InfrastructureAdvisorAutoProxyCreator proxies() {
        return new InfrastructureAdvisorAutoProxyCreator();
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    public BeanFactoryTransactionAttributeSourceAdvisor transactional(
            PlatformTransactionManager transactionManager) {
        AnnotationTransactionAttributeSource source = new AnnotationTransactionAttributeSource();
        BeanFactoryTransactionAttributeSourceAdvisor advisor =
                new BeanFactoryTransactionAttributeSourceAdvisor();
        advisor.setTransactionAttributeSource(source);
        advisor.setAdvice(new TransactionInterceptor(transactionManager, source));
        return advisor;
    }

    /** Arguments: the port, and the classes of the beans. */
    public static void main(String[] arguments) throws Exception {
        AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext();
        context.register(Application.class);
        for (int i = 1; i < arguments.length; i++) context.register(Class.forName(arguments[i]));
        context.refresh();
        PaymentController controller = context.getBean(PaymentController.class);
        int port = Integer.parseInt(arguments[0]);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 128);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/payments", exchange -> send(exchange, handle(controller, exchange)));
        server.start();
    }

    private static ResponseEntity<String> handle(
            PaymentController controller, HttpExchange exchange) throws IOException {
        String key = exchange.getRequestHeaders().getFirst("Idempotency-Key");
        byte[] body = exchange.getRequestBody().readAllBytes();
        try {
            return controller.pay(key, new String(body, StandardCharsets.UTF_8));
        } catch (RuntimeException error) {
            return ResponseEntity.status(500).body(String.valueOf(error));
        }
    }

    private static void send(HttpExchange exchange, ResponseEntity<String> answer)
            throws IOException {
        answer.getHeaders().forEach((name, values) ->
                exchange.getResponseHeaders().put(name, values));
        byte[] body = answer.getBody().getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(answer.getStatusCodeValue(), body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }
}
