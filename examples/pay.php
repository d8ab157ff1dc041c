#!/usr/bin/env php
<?php
// Makes a payment exactly once, however often it is requested (PDO).
//
//   php pay.php KEY AMOUNT
//
// Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
// Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
// the scope and the table of setup.sql.
declare(strict_types=1);

const ATTEMPTS = 10;
// Errors that a retry can cure: a lost connection (08, and HY000 from PDO itself), a lost race
// (40), a lack of resources (53), a restart of the server (57P), a key that another caller holds
// (ID001), a limit (ID009), an operation without attempts left (ID014).
const TRANSIENT = '/^(HY000|08|40|53|57P|ID001|ID009|ID014)/';

function query(PDO $pdo, string $sql, array $parameters): array
{
    $statement = $pdo->prepare($sql);
    $statement->execute($parameters);
    return $statement->fetch(PDO::FETCH_ASSOC);
}

// Claims the key, makes the payment and completes the claim, in one transaction.
function pay_once(PDO $pdo, string $key, string $amount): string
{
    $pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION); // the default from PHP 8 on
    $pdo->beginTransaction();
    $claim = query(
        $pdo,
        "SELECT claimed, token, response
           FROM idem.claim('payments', :key, jsonb_build_object('amount', :amount::numeric))",
        ['key' => $key, 'amount' => $amount]
    );
    $answer = $claim['response']; // a retry gets the first answer
    if ($claim['claimed']) {
        $payment = query(
            $pdo,
            'INSERT INTO payment (amount) VALUES (:amount) RETURNING to_jsonb(payment) AS answer',
            ['amount' => $amount]
        );
        $answer = query(
            $pdo,
            'SELECT idem.complete(:token, :answer) AS answer',
            ['token' => $claim['token'], 'answer' => $payment['answer']]
        )['answer'];
    }
    $pdo->commit();
    return $answer;
}

// Retries with the same key until there is an answer, or an error that a retry cannot cure.
function pay(string $key, string $amount): string
{
    for ($attempt = 1; ; $attempt++) {
        try {
            return pay_once(new PDO('pgsql:'), $key, $amount);
        } catch (PDOException $error) {
            if ($attempt === ATTEMPTS || !preg_match(TRANSIENT, sqlstate($error))) {
                throw $error;
            }
            $backoff = mt_rand() / mt_getrandmax() * min(5, 0.05 * 2 ** $attempt);
            usleep((int) (1e6 * max(retry_after($error), $backoff)));
        }
    }
}

function sqlstate(PDOException $error): string
{
    return $error->errorInfo[0] ?? '08001'; // none: it could not connect
}

// The time to wait, in seconds, which ID001, ID009 and ID014 have in a field that PDO hides.
// Their hints, which PDO adds to the message, contain it as "after 1.5 seconds".
function retry_after(PDOException $error): float
{
    $known = preg_match('/after ([\d.]+) seconds/', $error->getMessage(), $found);
    return $known ? (float) $found[1] : 0;
}

// The driver's message also has the severity and the hint; the problem needs the primary message.
function problem(PDOException $error): string
{
    preg_match('/:  (.*)/', $error->errorInfo[2] ?? '', $found);
    return query(
        new PDO('pgsql:'),
        'SELECT idem.problem(:sqlstate, :detail) AS problem',
        ['sqlstate' => sqlstate($error), 'detail' => $found[1] ?? null]
    )['problem'];
}

[, $key, $amount] = $argv;
try {
    echo pay($key, $amount), "\n";
} catch (PDOException $error) {
    fwrite(STDERR, problem($error) . "\n");
    exit(1);
}
