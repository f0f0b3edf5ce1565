// Works off a domain: leases one entry after the other, runs a command for each with its value on
// standard input and its URI in FASTJOURNAL_URI, extends the lease meanwhile, then completes or
// fails it.
//
//	go run consumer.go HOST:PORT|unix:PATH DOMAIN COMMAND [ARGUMENT...]
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	deleteFunction, next, release, touch                     = 4, 11, 13, 14
	key16, valueU32, timeout, workedOn, data, listen, hasTTL = 1, 6, 8, 0x40, 0x400, 0x800, 0x4000
	twoKeys, cursor, count                                   = 0x80, 0x100, 0x2000
)

type job struct{ key, uri, value []byte }

type reply struct {
	token uint64
	error string
	jobs  []job
}

type connection struct {
	net.Conn
	from *bufio.Reader
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(69)
	}
}

func (c *connection) take(size uint64) []byte {
	taken := make([]byte, size)
	_, err := io.ReadFull(c.from, taken)
	check(err)
	return taken
}

func (c *connection) number(size uint64) (number uint64) {
	for _, digit := range c.take(size) {
		number = number<<8 | uint64(digit)
	}
	return
}

func (c *connection) sized(width uint64) []byte { return c.take(c.number(width)) }

// request sends one request and waits for its reply.
func (c *connection) request(function, flags uint16, fields []uint64, key, value []byte) (r reply) {
	var frame bytes.Buffer
	put := func(parts ...any) {
		for _, part := range parts {
			_ = binary.Write(&frame, binary.BigEndian, part) // a buffer takes everything
		}
	}
	put([]byte("FJ"), uint16(1), function, uint16(0), flags|key16, uint64(time.Now().UnixMicro()))
	put(fields, uint16(len(key)), key)
	if flags&valueU32 != 0 {
		put(uint32(len(value)+1), uint8(2), value) // type 2: string
	}
	_, err := c.Write(frame.Bytes())
	check(err)

	head := c.take(16) // magic, version, identifier, flags, timestamp
	if string(head[:2]) != "JR" {
		check(fmt.Errorf("this is no fastjournald"))
	}
	flags = binary.BigEndian.Uint16(head[6:])
	width, pairs := uint64(1+flags&key16), uint64(0)
	if flags&timeout != 0 {
		r.token = c.number(8)
	}
	if flags&hasTTL != 0 {
		c.take(8)
	}
	if flags&count != 0 {
		pairs = c.number(2)
	}
	r.error = string(c.sized(width))
	if flags&cursor != 0 {
		c.sized(width)
	}
	for ; pairs > 0; pairs-- {
		found := job{key: c.sized(width)}
		if flags&twoKeys != 0 {
			found.uri = c.sized(width)
		}
		found.value = c.sized([]uint64{0, 1, 2, 4}[flags&valueU32>>1])[1:]
		r.jobs = append(r.jobs, found)
	}
	return
}

// work runs the command for a job, and returns the token and why it failed.
func (c *connection) work(work job, token, lease uint64, line []string) (uint64, string) {
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "FASTJOURNAL_URI="+string(work.uri))
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(work.value), os.Stdout, os.Stderr
	ended := make(chan error, 1)
	go func() { ended <- command.Run() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return token, err.Error()
			}
			return token, ""
		case <-time.After(time.Duration(lease/3) * time.Microsecond):
			fields := []uint64{token, lease}
			if r := c.request(touch, timeout|workedOn|hasTTL, fields, work.key, nil); r.error == "" {
				token = r.token
			}
		}
	}
}

func main() {
	address, domain, line := os.Args[1], []byte(os.Args[2]), os.Args[3:]
	lease := uint64(60_000_000)
	if text := os.Getenv("LEASE_MS"); text != "" {
		number, err := strconv.ParseUint(text, 10, 32)
		check(err)
		lease = number * 1000
	}
	network := "tcp"
	if path := strings.TrimPrefix(address, "unix:"); path != address {
		network, address = "unix", path
	}
	dialled, err := net.Dial(network, address)
	check(err)
	c := &connection{dialled, bufio.NewReader(dialled)}
	for {
		got := c.request(next, timeout|data|listen, []uint64{lease}, domain, nil)
		if got.error != "" {
			check(fmt.Errorf("%s", got.error))
		}
		for _, one := range got.jobs {
			token, why := c.work(one, got.token, lease, line)
			var end reply
			if why != "" {
				end = c.request(release, timeout|workedOn|valueU32, []uint64{token}, one.key, []byte(why))
			} else {
				end = c.request(deleteFunction, timeout|workedOn, []uint64{token}, one.key, nil)
			}
			if end.error != "" { // lease-lost: somebody else does it again
				fmt.Fprintf(os.Stderr, "consumer: %s: %s\n", one.key, end.error)
			}
		}
	}
}
