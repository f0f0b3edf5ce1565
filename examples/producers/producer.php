<?php
// Spools each line of standard input as work on a URI, without fastjournal:
//   php producer.php SPOOL URI <lines
// A web application calls spool() in its request: one small file, no daemon, no lock.

function domain_of(string $uri): string
{
    $parts = parse_url($uri);
    $host = strtolower(rtrim(trim($parts['host'] ?? '', '[]'), '.'));
    if ($host === '') {
        throw new InvalidArgumentException("no host in $uri");
    }
    return str_replace(':', '%3A', isset($parts['port']) ? "$host:{$parts['port']}" : $host);
}

function set_record(string $uri, string $value): string
{
    static $last = 0;
    $last = $timestamp = max($last + 1, (int) (microtime(true) * 1e6));
    $id = dechex($timestamp) . '-' . bin2hex(random_bytes(6));
    $key = sprintf('%s:128:%016d:%s', domain_of($uri), $timestamp, $id);
    // SET with KEY16, a value whose size is u32, RANGE (two keys), PERSIST
    $frame = 'FJ' . pack('nnnnJ', 1, 2, 0, 0x0287, $timestamp)
        . pack('n', strlen($key)) . $key . pack('n', strlen($uri)) . $uri
        . pack('NC', strlen($value) + 1, 1) . $value;
    $body = pack('N', strlen($frame)) . $frame;
    return 'P' . $body . hash('crc32c', $body, true);
}

function spool(string $directory, array $records): void
{
    $name = gmdate('Ymd\THis\Z') . '-php-' . bin2hex(random_bytes(8)) . '.fjs';
    $file = fopen("$directory/.$name.tmp", 'x');
    $data = 'fjsp' . pack('N', 1) . implode('', $records);
    if (!$file || fwrite($file, $data) !== strlen($data) || !fsync($file) || !fclose($file)
        || !chmod("$directory/.$name.tmp", 0660)
        || !rename("$directory/.$name.tmp", "$directory/$name")) {
        throw new RuntimeException("cannot spool to $directory");
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
