#!/usr/bin/env php
<?php
// A payment that is made once, however often it is asked for (PDO).
//
//   php pay.php KEY AMOUNT
//
// Prints the answer as JSON; an error goes to standard error as a problem document (RFC 9457). Connects
// as PGHOST, PGPORT, PGDATABASE and PGUSER say, to a database with the scope and table of setup.sql.
declare(strict_types=1);

const ATTEMPTS = 10;
// Nothing is wrong with the request: the connection is lost (HY000 is PDO's, not the server's), a race
// is lost, the server is short of something or restarting, another try is at it, too many came at once.
const TRANSIENT = '/^(HY000|08|40|53|57P|ID001|ID009)/';

function query(PDO $pdo, string $sql, array $parameters): array
{
    $statement = $pdo->prepare($sql);
    $statement->execute($parameters);
    return $statement->fetch(PDO::FETCH_ASSOC);
}

// Claim, effect and complete, in one transaction.
function pay_once(PDO $pdo, string $key, string $amount): string
{
    $pdo->beginTransaction();
    $claim = query(
        $pdo,
        "SELECT claimed, token, response FROM idem.claim('payments', :key, jsonb_build_object('amount', :amount::numeric))",
        ['key' => $key, 'amount' => $amount]
    );
    $answer = $claim['response']; // a retry: the first answer
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

// Tries with the same key until there is an answer, or an error that will not pass.
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
    return $error->errorInfo[0] ?? '08001'; // nothing: it could not connect
}

// Seconds: the hints of ID001 and ID009 say "after 1.5 seconds".
function retry_after(PDOException $error): float
{
    return preg_match('/after ([\d.]+) seconds/', $error->getMessage(), $found) ? (float) $found[1] : 0;
}

// The message has severity and hint around the server's own words.
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
