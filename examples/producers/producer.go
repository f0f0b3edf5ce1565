// Spools each line of standard input as work on a URI, without fastjournal:
//
//	go run producer.go SPOOL URI <lines
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log"
	"net/url"
	"os"
	"strings"
	"time"
)

var last int64

func random() string {
	data := make([]byte, 8)
	if _, err := rand.Read(data); err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("%x", data)
}

func domainOf(uri string) string {
	parsed, err := url.Parse(uri)
	if err != nil || parsed.Hostname() == "" {
		log.Fatalf("no host in %s", uri)
	}
	domain := strings.TrimSuffix(strings.ToLower(parsed.Hostname()), ".")
	if port := parsed.Port(); port != "" {
		domain += ":" + port
	}
	return strings.ReplaceAll(domain, ":", "%3A")
}

func setRecord(uri string, value []byte) []byte {
	last++
	if now := time.Now().UnixMicro(); now > last {
		last = now
	}
	key := fmt.Sprintf("%s:128:%016d:%x-%s", domainOf(uri), last, last, random())
	var frame bytes.Buffer
	put := func(parts ...any) {
		for _, part := range parts {
			_ = binary.Write(&frame, binary.BigEndian, part) // a buffer takes everything
		}
	}
	put([]byte("FJ"), uint16(1), uint16(2), uint16(0)) // version, SET, identifier
	put(uint16(0x0287), uint64(last))                  // KEY16, VALUE u32, RANGE, PERSIST
	put(uint16(len(key)), []byte(key), uint16(len(uri)), []byte(uri))
	put(uint32(len(value)+1), uint8(1), value)
	body := binary.BigEndian.AppendUint32(nil, uint32(frame.Len()))
	body = append(body, frame.Bytes()...)
	crc := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	return binary.BigEndian.AppendUint32(append([]byte("P"), body...), crc)
}

func main() {
	directory, uri := os.Args[1], os.Args[2]
	content := append([]byte("fjsp"), 0, 0, 0, 1)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20) // a longer line is an error; the default is 64 KiB
	for lines.Scan() {
		content = append(content, setRecord(uri, lines.Bytes())...)
	}
	check(lines.Err())
	name := fmt.Sprintf("%s-go-%s.fjs", time.Now().UTC().Format("20060102T150405Z"), random())
	temporary := directory + "/." + name + ".tmp"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	check(err)
	_, err = file.Write(content)
	check(err)
	check(file.Chmod(0o660))
	check(file.Sync())
	check(file.Close())
	check(os.Rename(temporary, directory+"/"+name))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
