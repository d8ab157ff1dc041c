<?php
// Runs the statements of standard input with PDO, and prints the result of each.
declare(strict_types=1);

$mode = $argv[1];
$pdo = new PDO('pgsql:', null, null, [
    PDO::ATTR_EMULATE_PREPARES => $mode === 'literals',
    PDO::PGSQL_ATTR_DISABLE_PREPARES => $mode === 'parameters',
]);
$saved = [];

$parameter = function (string $field) use (&$saved): ?string {
    [$kind, $value] = explode(':', $field, 2);
    if ($kind === 'null') {
        return null;
    }
    return str_starts_with($value, '$') ? $saved[substr($value, 1)] : $value;
};

function result(PDO $pdo, string $sql, array $parameters): string
{
    try {
        $statement = $pdo->prepare($sql);
        $statement->execute($parameters);
        return $statement->fetchColumn();
    } catch (PDOException $error) {
        return "ERROR {$error->errorInfo[0]}";
    }
}

while (($line = fgets(STDIN)) !== false) {
    $fields = explode("\t", rtrim($line, "\n"));
    [$name, $sql] = array_splice($fields, 0, 2);
    $saved[$name] = result($pdo, $sql, array_map($parameter, $fields));
    echo $saved[$name], "\n";
}
