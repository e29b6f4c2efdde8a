// Command refused sends one request with a body and prints the code of its answer.
//
// Arguments: URL, protocol (1 or 2), method, content type, user, bytes of the body.
package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strconv"
)

func main() {
	size, err := strconv.Atoi(os.Args[6])
	if err != nil {
		panic(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(os.Args[2] == "1")
	protocols.SetUnencryptedHTTP2(os.Args[2] == "2")
	client := http.Client{Transport: &http.Transport{Protocols: protocols}}
	body := bytes.Repeat([]byte(" "), size)
	for range 5 {
		request, err := http.NewRequest(os.Args[3], os.Args[1], bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		request.Header.Set("Content-Type", os.Args[4])
		request.Header.Set("User", os.Args[5])
		answer, err := client.Do(request)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		answer.Body.Close()
		fmt.Print(answer.StatusCode, " ")
	}
}
