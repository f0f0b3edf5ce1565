// Spools each line of standard input as work on a URI, durably and without fastjournal:
//
//	go run producer.go SPOOL URI <lines
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"regexp"
	"strings"
	"time"
)

var number = binary.BigEndian

var uriForm = regexp.MustCompile(`^(?:[a-z][a-z0-9+.-]*:)?//(?:[^/?#]*@)?` +
	`(\[[0-9a-f:.]+\]|[0-9a-z_][0-9a-z_-]*(?:\.[0-9a-z_-]+)*)\.?(?::(?:0*([0-9]+))?)?(?:[/?#]|$)`)

func domainOf(uri string) string {
	parts := uriForm.FindStringSubmatch(strings.ToLower(uri))
	if parts == nil || len(parts[2]) > 5 || len(parts[2]) == 5 && parts[2] > "65535" {
		log.Fatalf("no host in %s (IDNA form, xn--..., if not ASCII)", uri)
	}
	domain := strings.TrimSuffix(parts[1]+":"+parts[2], ":")
	return strings.NewReplacer("[", "", "]", "", ":", "%3A").Replace(domain)
}

func setRecord(key, uri string, timestamp int64, value []byte) []byte {
	frame := []byte("FJ\x00\x01\x00\x02\x00\x00") // version 1, SET, identifier 0
	frame = number.AppendUint16(frame, 0x0287)    // KEY16, VALUE u32, RANGE (two keys), PERSIST
	frame = number.AppendUint64(frame, uint64(timestamp))
	frame = append(number.AppendUint16(frame, uint16(len(key))), key...)
	frame = append(number.AppendUint16(frame, uint16(len(uri))), uri...)
	frame = append(number.AppendUint32(frame, uint32(len(value)+1)), 1) // type 1: bytes
	frame = append(frame, value...)
	body := append(number.AppendUint32(nil, uint32(len(frame))), frame...)
	crc := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	return number.AppendUint32(append([]byte("P"), body...), crc)
}

func spool(directory, domain, uri string, lines *bufio.Scanner) error {
	now, random := time.Now().UTC(), make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-go-%x.fjs", now.Format("20060102T150405Z"), random)
	temporary := fmt.Sprintf("%s/.%s.tmp", directory, name)
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	out := bufio.NewWriter(file) // Flush returns the first error of all writes
	out.WriteString("fjsp\x00\x00\x00\x01")
	for timestamp := now.UnixMicro(); lines.Scan(); timestamp++ {
		key := fmt.Sprintf("%s:128:%016d:%x-%x", domain, timestamp, timestamp, random)
		if len(key) > 4096 || len(uri) > 4096 {
			return errors.New("the key or the URI is over 4096 bytes")
		}
		out.Write(setRecord(key, uri, timestamp, lines.Bytes()))
	}
	share := func() error { return file.Chmod(0o660) } // whatever the umask
	appear := func() error { return os.Link(temporary, directory+"/"+name) }
	for _, step := range []func() error{lines.Err, out.Flush, share, file.Sync, appear} {
		if err := step(); err != nil {
			return err
		}
	}
	folder, err := os.Open(directory)
	if err != nil {
		return err
	}
	return folder.Sync() // the name survives a power cut, too
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20) // a longer line is an error; the default is 64 KiB
	if err := spool(os.Args[1], domainOf(os.Args[2]), os.Args[2], lines); err != nil {
		log.Fatal(err)
	}
}
