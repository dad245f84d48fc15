// Command sshnode answers the ssh of Kubernetes' disruptive tests, which restart a node's kubelet: it runs each command
// by the program that it is given, with the command as the last argument. It accepts any key: for addresses on `lo` only.
package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"

	"golang.org/x/crypto/ssh"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: sshnode ADDRESS:PORT PROGRAM [ARGUMENT...]")
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		log.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, nil
	}}
	config.AddHostKey(signer)
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(connection, config)
	}
}

func serve(connection net.Conn, config *ssh.ServerConfig) {
	defer connection.Close()
	_, channels, requests, err := ssh.NewServerConn(connection, config)
	if err != nil {
		log.Print(err)
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			log.Print(err)
			return
		}
		go session(channel, requests)
	}
}

// session runs the one command of a session and sends its exit code.
func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		var asked struct{ Command string }
		if err := ssh.Unmarshal(request.Payload, &asked); err != nil {
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		command := exec.Command(os.Args[2], append(append([]string{}, os.Args[3:]...), asked.Command)...)
		command.Stdout, command.Stderr = channel, channel.Stderr()
		var code struct{ Status uint32 }
		if err := command.Run(); err != nil {
			code.Status = 255
			var exited *exec.ExitError
			if errors.As(err, &exited) && exited.ExitCode() >= 0 {
				code.Status = uint32(exited.ExitCode())
			}
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(code))
		return
	}
}
