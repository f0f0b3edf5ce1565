// Works off a domain: leases one entry after the other, runs a command for each with its value on
// standard input and its URI in FASTJOURNAL_URI, extends the lease, then completes or fails it.
//
//	go run consumer.go HOST PORT DOMAIN LEASE_S COMMAND...
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"time"
)

const (
	deleteEntry, next, release, touch          = 4, 11, 13, 14
	key16, valueU32, timeout, workedOn         = 1, 6, 8, 0x40
	twoKeys, cursor, data, listen, counts, ttl = 0x80, 0x100, 0x400, 0x800, 0x2000, 0x4000
)

var number = binary.BigEndian

type reply struct {
	token, key, uri, value []byte
	error                  string
	found                  bool
}

type connection struct {
	net.Conn
	replies *bufio.Reader
}

func check(err error) {
	if err != nil {
		log.Fatal("consumer: ", err)
	}
}

func (c *connection) take(size uint32) []byte {
	taken := make([]byte, size)
	_, err := io.ReadFull(c.replies, taken)
	check(err)
	return taken
}

func (c *connection) sized(width uint32) []byte {
	size := append(make([]byte, 4), c.take(width)...)
	return c.take(number.Uint32(size[width:]))
}

// request sends one request and waits for its reply.
func (c *connection) request(function, flags uint16, fields, key []byte, value string) (r reply) {
	frame := number.AppendUint16([]byte("FJ\x00\x01"), function)
	frame = number.AppendUint32(frame, uint32(flags|key16)) // identifier 0, flags
	frame = number.AppendUint64(frame, uint64(time.Now().UnixMicro()))
	frame = append(frame, fields...)
	frame = append(number.AppendUint16(frame, uint16(len(key))), key...)
	if flags&valueU32 != 0 { // type 2: string
		frame = append(number.AppendUint32(frame, uint32(len(value)+1)), "\x02"+value...)
	}
	_, err := c.Write(frame)
	check(err)

	head := c.take(16) // magic, version, identifier, flags, timestamp
	if string(head[:2]) != "JR" {
		log.Fatal("consumer: this is no fastjournald")
	}
	flags = number.Uint16(head[6:])
	width := uint32(1 + flags&key16)
	if flags&timeout != 0 {
		r.token = c.take(8)
	}
	if flags&ttl != 0 {
		c.take(8)
	}
	r.found = flags&counts != 0 && number.Uint16(c.take(2)) > 0 // NEXT gives one job at most
	r.error = string(c.sized(width))
	if flags&cursor != 0 {
		c.sized(width)
	}
	if r.found {
		r.key = c.sized(width)
		if flags&twoKeys != 0 {
			r.uri = c.sized(width)
		}
		r.value = c.sized([]uint32{0, 1, 2, 4}[flags&valueU32>>1])[1:] // behind its type
	}
	return
}

// work runs the command for a job, and completes it or releases it with the reason.
func (c *connection) work(job reply, lease []byte, third time.Duration, line []string) reply {
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "FASTJOURNAL_URI="+string(job.uri))
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(job.value), os.Stdout, os.Stderr
	ended := make(chan error, 1)
	go func() { ended <- command.Run() }()
	for {
		select {
		case err := <-ended:
			if err == nil {
				return c.request(deleteEntry, timeout|workedOn, job.token, job.key, "")
			}
			return c.request(release, timeout|workedOn|valueU32, job.token, job.key, err.Error())
		case <-time.After(third):
			fields := append(job.token[:8:8], lease...)
			if r := c.request(touch, timeout|workedOn|ttl, fields, job.key, ""); r.error == "" {
				job.token = r.token
			}
		}
	}
}

func main() {
	domain, line := []byte(os.Args[3]), os.Args[5:]
	period, err := time.ParseDuration(os.Args[4] + "s")
	check(err)
	lease := number.AppendUint64(nil, uint64(period.Microseconds()))
	dialled, err := net.Dial("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))
	check(err)
	c := &connection{dialled, bufio.NewReader(dialled)}
	for {
		job := c.request(next, timeout|data|listen, lease, domain, "")
		if job.error != "" {
			log.Fatal("consumer: ", job.error)
		}
		if !job.found {
			continue
		}
		if end := c.work(job, lease, period/3, line); end.error != "" { // lease-lost: done twice
			log.Printf("consumer: %s: %s", job.key, end.error)
		}
	}
}
