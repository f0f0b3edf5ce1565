<?php
// Spools each line of standard input as work on a URI, durably and without fastjournal:
//   php producer.php SPOOL URI <lines
// A web application calls spool() in its request: one small file, no daemon, no lock.

function domain_of(string $uri): string
{
    $form = '~^(?:[a-z][a-z0-9+.-]*:)?//(?:[^/?#]*@)?(\[.*\]|[^:/?#]*?)\.?(?::(\d*))?(?:[/?#]|$)~iD';
    preg_match($form, $uri, $found);
    [$host, $port] = [strtolower($found[1] ?? ''), $found[2] ?? ''];
    if (preg_match('/[^\0-\x7f]/', $host) && function_exists('idn_to_ascii')) {
        $host = (string) idn_to_ascii($host, IDNA_NONTRANSITIONAL_TO_ASCII);
    }
    preg_match('/^(\[[0-9a-f:.]+\]|[0-9a-z_][0-9a-z_-]*(\.[0-9a-z_-]+)*)$/D', $host) && $port <= 65535
        || throw new InvalidArgumentException("no host in $uri (not ASCII: intl is needed)");
    return strtr($port === '' ? $host : "$host:" . (int) $port, [':' => '%3A', '[' => '', ']' => '']);
}

function set_record(string $uri, string $value): string
{
    static $last = 0;
    $last = $timestamp = max($last + 1, (int) (microtime(true) * 1e6));
    $id = dechex($timestamp) . '-' . bin2hex(random_bytes(6));
    $key = sprintf('%s:128:%016d:%s', domain_of($uri), $timestamp, $id);
    max(strlen($key), strlen($uri)) <= 4096
        || throw new InvalidArgumentException('the key or the URI is over 4096 bytes');
    // version 1, SET, identifier 0; KEY16, VALUE u32, RANGE, PERSIST; the value is of type 1: bytes
    $frame = 'FJ' . pack('nnnnJ', 1, 2, 0, 0x0287, $timestamp) . pack('n', strlen($key)) . $key
        . pack('n', strlen($uri)) . $uri . pack('NC', strlen($value) + 1, 1) . $value;
    $body = pack('N', strlen($frame)) . $frame;
    return "P$body" . hash('crc32c', $body, true);
}

function spool(string $directory, array $records): void
{
    $name = gmdate('Ymd\THis\Z') . '-php-' . bin2hex(random_bytes(8)) . '.fjs';
    $temporary = "$directory/.$name.tmp";
    $data = 'fjsp' . pack('N', 1) . implode('', $records);
    $before = umask(077); // nobody else reads it before chmod
    $file = fopen($temporary, 'x') ?: throw new RuntimeException("cannot create $temporary");
    umask($before);
    try {
        // the directory is synced too: so the name survives a power cut
        (fwrite($file, $data) === strlen($data) && chmod($temporary, 0660) && fsync($file)
            && link($temporary, "$directory/$name") && fsync(fopen($directory, 'r')))
            ?: throw new RuntimeException("cannot write $directory/$name");
    } finally {
        unlink($temporary);
    }
}

// A read that fails is only a notice of PHP, and looks like the end of the lines.
set_error_handler(fn (int $_, string $text) => throw new RuntimeException($text));
[, $directory, $uri] = $argv;
$records = [];
while (($line = fgets(STDIN)) !== false) {
    $records[] = set_record($uri, rtrim($line, "\n"));
}
spool($directory, $records);
